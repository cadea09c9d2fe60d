"""vLLM's persistent batch with two contiguous slices: generation rows first, embedding rows after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.compat import InputBatch

if TYPE_CHECKING:
    from orthrus.engine.compat import CachedRequestState, SamplingMetadata


class MixedInputBatch(InputBatch):
    """An InputBatch that may hold embedding rows; everything about sampling sees generation rows only.

    Adopted by assigning the class of a batch that vLLM has built (same layout, no extra constructor), so
    every attribute below has a class-level default.
    """

    _sampling_view = False
    _reused: tuple[int, ...] = ()

    @property
    def num_reqs(self) -> int:
        """Rows of the batch; inside `refresh_metadata` only those that are sampled."""
        return self.num_generation_rows if self._sampling_view else len(self.req_id_to_index)

    @property
    def num_generation_rows(self) -> int:
        return len(self.req_id_to_index) - len(self.pooling_params)

    def _register_add_request(self, request: CachedRequestState) -> int:
        index = super()._register_add_request(request)
        if request.sampling_params is None and index < len(self._req_ids):
            # The row's last owner leaves vLLM's list of removed rows here and no addition replaces it,
            # so the logits processors would keep that owner's state.
            self._reused += (index,)
        return index

    def remove_request(self, req_id: str) -> int | None:
        self.pooling_params.pop(req_id, None)
        self.pooling_states.pop(req_id, None)
        return super().remove_request(req_id)

    def sort_rows(self, num_tokens: dict[str, int], decode_threshold: int | None) -> None:
        """Bring the rows into the order generation, embedding; within generation decodes come first
        where the attention backend wants them so (`decode_threshold` not None).

        `num_tokens`: tokens of this step by request id.
        """

        req_ids = self.req_ids
        regions = [
            2
            if req_id in self.pooling_params
            else int(decode_threshold is not None and num_tokens[req_id] > decode_threshold)
            for req_id in req_ids
        ]
        first = 0
        for region in (0, 1):
            last = len(regions) - 1
            while True:
                while first <= last and regions[first] == region:
                    first += 1
                while first <= last and regions[last] != region:
                    last -= 1
                if first >= last:
                    break
                self.swap_states(first, last)
                regions[first], regions[last] = regions[last], regions[first]

    def refresh_metadata(self) -> None:
        if self._reused:
            self.batch_update_builder._removed.extend(self._reused)
            self._reused = ()
        if self.num_generation_rows:
            self._sampling_view = True
            try:
                super().refresh_metadata()
            finally:
                self._sampling_view = False
        else:
            self._refresh_without_generation()

    def _refresh_without_generation(self) -> None:
        update = self.batch_update_builder.get_and_reset(0)
        if self.thinking_budget_state_holder is not None and update:
            self.thinking_budget_state_holder.sync_batch(update)
        for processor in self.logitsprocs.all:
            processor.update_state(update)

    def _make_sampling_metadata(self) -> SamplingMetadata:
        metadata = super()._make_sampling_metadata()
        # vLLM hands out its live lists; later embeddings would lengthen those without a new metadata.
        metadata.output_token_ids = metadata.output_token_ids[: self.num_reqs]
        if metadata.spec_token_ids is not None:
            metadata.spec_token_ids = metadata.spec_token_ids[: self.num_reqs]
        return metadata
