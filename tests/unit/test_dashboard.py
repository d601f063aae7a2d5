"""The files of the demo page, their headers, and the links on the page."""

import re
from importlib.resources import files

import pytest

from ropewalk.dashboard import DemoPage, StaticPage

CONTENT_TYPES = {
    "/demo": "text/html; charset=utf-8",
    "/demo/": "text/html; charset=utf-8",
    "/demo/demo.css": "text/css; charset=utf-8",
    "/demo/demo.js": "text/javascript; charset=utf-8",
    "/demo/messages.js": "text/javascript; charset=utf-8",
    "/demo/publisher.js": "text/javascript; charset=utf-8",
    "/demo/report.js": "text/javascript; charset=utf-8",
    "/demo/icon.svg": "image/svg+xml; charset=utf-8",
}


@pytest.fixture
def pages() -> dict[str, StaticPage]:
    return DemoPage().pages()


def text(pages: dict[str, StaticPage], path: str = "/demo") -> str:
    return pages[path].body.decode()


def test_every_file_has_its_content_type_and_security_headers(pages: dict[str, StaticPage], subtests: pytest.Subtests) -> None:
    for path in CONTENT_TYPES:
        with subtests.test(path=path):
            page = pages[path]
            policy = page.headers["Content-Security-Policy"]
            assert page.status == 200
            assert page.headers["Content-Type"] == CONTENT_TYPES[path]
            assert page.headers["X-Content-Type-Options"] == "nosniff"
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy


def test_every_file_in_the_folder_is_served(pages: dict[str, StaticPage]) -> None:
    names = {file.name for file in files("ropewalk.dashboard").joinpath("static").iterdir()} - {"demo.html"}
    assert names
    assert {f"/demo/{name}" for name in names} <= set(pages)


def test_all_links_of_the_page_and_its_scripts_are_served(pages: dict[str, StaticPage]) -> None:
    modules = re.findall(r'from "\./([^"]+)"', text(pages, "/demo/demo.js"))
    assert 'from "/ropewalk.js"' in text(pages, "/demo/demo.js")  # which every server serves
    wanted = {*re.findall(r'(?:src|href)="(/[^"]+)"', text(pages)), *(f"/demo/{name}" for name in modules)}
    assert len(wanted) > 5
    assert wanted <= set(pages)


def test_page_has_no_inline_script_inline_style_or_external_address(pages: dict[str, StaticPage]) -> None:
    page = text(pages)
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', page)


def test_page_has_the_configured_paths_escaped() -> None:
    page = text(DemoPage(cable_path='/ws"><script>', publish_path="/v1/publish").pages())
    assert 'data-cable="/ws&quot;&gt;&lt;script&gt;"' in page
    assert 'data-publish="/v1/publish"' in page


def test_page_has_the_default_paths(pages: dict[str, StaticPage]) -> None:
    page = text(pages)
    assert 'data-cable="/cable"' in page
    assert 'data-publish="/api/publish"' in page
    assert "{{" not in page


def test_root_redirects_to_the_page_unless_disabled(pages: dict[str, StaticPage]) -> None:
    assert (pages["/"].status, pages["/"].headers["Location"]) == (302, "/demo")
    assert "/" not in DemoPage(root=False).pages()
