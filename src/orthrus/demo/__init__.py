"""`orthrus demo`: one real server chats and embeds at once, and the terminal shows what each step holds."""
