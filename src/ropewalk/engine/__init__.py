"""The flow: asyncio, and no library's name. Registers, fans out, joins, resumes, and ends in good order."""
