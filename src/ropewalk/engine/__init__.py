"""The flow of messages and sessions, on asyncio and without any third-party library: register, deliver, join, resume, shut
down.
"""
