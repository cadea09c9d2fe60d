"""The demo's prompts: chats to stream, the prompt that turns a text into a vector, and the questions.

Every question of QUESTIONS asks for one of 25 passages drawn at random, and was written before any
retrieval was tried. `scripts/measure_retrieval.py` asks all of them in several ways.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question and the id of the passage that answers it."""

    text: str
    passage_id: str


QUESTIONS = (
    Question("Which metal is used for surgical and dental tools because it does not corrode?", "element-073"),
    Question(
        "Which country was partitioned by Russia, Prussia and Austria in the 18th century?", "country-pl"
    ),
    Question("Which element conducts electricity more easily when light strikes it?", "element-034"),
    Question("Which country shares its name with the Chewa word for flames?", "country-mi"),
    Question("Which element is the best absorber of neutrons?", "element-064"),
    Question("Which small state lies high in the Pyrenees, between France and Spain?", "country-an"),
    Question("In which country did growing cotton leave the Aral Sea half dry?", "country-uz"),
    Question(
        "Which Portuguese trading port was the first European settlement in the Far East?", "country-mc"
    ),
    Question("Which country fought the insurgents of the FARC for decades?", "country-co"),
    Question("On which islands did Columbus land on his second voyage in 1493?", "country-ac"),
    Question("In which country are the Tswana the most prominent ethnic group?", "country-bc"),
    Question("Which metal coats steel cans and is part of solder, bronze and pewter?", "element-050"),
    Question("Which country grew out of the kingdoms of Sukhothai and Ayutthaya?", "country-th"),
    Question("Which element is named after the bringer of light and used in fertilizers?", "element-015"),
    Question("Which uninhabited island did the United States claim in 1857 for its guano?", "country-bq"),
    Question("Which Caribbean island did the Dutch seize from the Spanish in 1634?", "country-uc"),
    Question("Which state was founded in 1948 after a partition plan of the United Nations?", "country-is"),
    Question("Which gas has the lowest boiling point of all elements and fills balloons?", "element-002"),
    Question("In which country did the basmachi guerrillas fight Bolshevik rule?", "country-ti"),
    Question("Which country was the center of Kyivan Rus, the first eastern Slavic state?", "country-up"),
    Question("Which noble gas is used for filling flash lamps?", "element-054"),
    Question("On which islands did sealers harvest elephant seal oil from 1855 on?", "country-hm"),
    Question("Which yellow element is used in matches, gunpowder and sulfuric acid?", "element-016"),
    Question("Which country was once the colony of French Somaliland?", "country-dj"),
    Question("In which country was the Tuareg kingdom of Takedda?", "country-ng"),
)

# Counts and ranks of the 25 questions: scripts/measure_retrieval.py on SmolLM2-135M-Instruct.
SHOWN = (QUESTIONS[6], QUESTIONS[14], QUESTIONS[22])
HOW_CHOSEN = (
    "Three of 25 questions, written for passages drawn at random before any retrieval was tried. With SmolLM2"
    " 16 of the 25 find their passage among the first three; these are three of the 16, which it answers well"
    " unless the other passages lead it astray. (It was never trained to embed: a checkpoint made for that"
    " does better.)"
)

# Prompts that make a language model close a text with the word it is about; the state of the last token is
# then a summary of the text (Jiang et al. 2023, "Scaling Sentence Embeddings with Large Language Models").
EMBEDDING_PROMPT = 'This sentence: "{text}" means in one word:"'

CHAT_PROMPTS = (
    "Explain in plain words how a rainbow forms.",
    "Write a short story about a lighthouse keeper and a storm.",
    "Give three tips for learning to cook at home.",
    "Describe a walk through a forest in autumn.",
    "Why is the sky dark at night?",
    "Write a letter that invites a friend to a picnic.",
    "How does a bicycle stay upright?",
    "Tell me about the history of writing.",
)
