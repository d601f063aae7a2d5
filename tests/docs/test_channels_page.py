"""The page on Python channels: its chat works, and its JavaScript is the code that the client tests run."""

from types import ModuleType

from ropewalk.channels import App
from ropewalk.testing import Cable
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "python-channels.md"


def load_app() -> App:
    source = next(block.text for block in blocks(PAGE) if block.language == "python")
    module = ModuleType("chat")
    exec(compile(source, str(PAGE), "exec"), vars(module))
    found = vars(module)["app"]
    assert isinstance(found, App)
    return found


async def test_the_chat_of_the_page_works() -> None:
    async with Cable(load_app()) as cable:
        bo = await cable.connect(params={"name": "Bo"})
        chat = await bo.subscribe("ChatChannel", room=1)
        await chat.perform("speak", text="hello")

        assert await chat.receive() == {"from": "Bo", "text": "hello"}
        assert chat.streams == ("chat/1",)


def test_the_page_shows_the_reply_helpers_that_the_client_tests_run() -> None:
    tried = (ROOT / "tests" / "clients" / "calling.js").read_text().replace("export ", "")
    shown = [block.text for block in blocks(PAGE) if block.language == "js" and "function " in block.text]
    assert len(shown) == 2
    assert [text for text in shown if text not in tried] == []
