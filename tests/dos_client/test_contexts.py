"""Names of stores: the file that has them, and which store a command uses that names none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.contexts import (
    Contexts,
    GivenArguments,
    NamedStore,
    Settings,
    StoreContext,
    completed,
    decode_contexts,
    decode_settings,
    encode_contexts,
    find_store,
    tls_to_set,
)
from dos_client.errors import ConfigurationError

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]))  # what a file in UTF-8 can hold
PROD = StoreContext("dos://p1,p2,p3", "/etc/dos/prod-token")
TEST = StoreContext("dos://t1")
BOTH = Contexts(current="prod", contexts={"prod": PROD, "test": TEST})


@given(st.dictionaries(names, st.builds(StoreContext, *(texts,) * 6)), texts)
def test_the_file_is_read_as_it_was_written(contexts: dict[str, StoreContext], current: str) -> None:
    written = Contexts(current=current, contexts=contexts)
    assert decode_contexts(encode_contexts(written), "contexts.toml") == written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version = 2", "has version 2, this release reads version 1"),
        ("version = [", "is no TOML"),
        ('[contexts.prod]\nstore = "dos://h1"\ntoken = "secret"', "unknown field `token`"),
        ("[contexts.prod]", "missing required field `store`"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^c\.toml") as caught:
        decode_contexts(text, "c.toml")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "variables", "current", "settings", "expected"),
    [
        ("test", {"DOS_STORE": "dos://v"}, "prod", "dos://s", ("dos://t1:9999", "", "context test")),
        ("", {"DOS_STORE": "dos://v", "DOS_CONTEXT": "t"}, "prod", "", ("dos://v:9999", "", "DOS_STORE")),
        ("", {"DOS_CONTEXT": "test"}, "prod", "dos://s", ("dos://t1:9999", "", "context test")),
        ("", {"DOS_STORE": ""}, "test", "dos://s", ("dos://t1:9999", "", "context test")),
        ("", {}, "", "dos://s", ("dos://s:9999", "/etc/dos/token", "dos.toml")),
    ],
)  # fmt: skip
def test_an_argument_comes_before_a_variable_a_context_and_the_file(
    asked: str, variables: dict[str, str], current: str, settings: str, expected: tuple[str, str, str]
) -> None:
    contexts = Contexts(current=current, contexts=BOTH.contexts)
    file = Settings(store=settings, token_file="/etc/dos/token")
    assert find_store(asked, variables, contexts, file)[:3] == expected


@pytest.mark.parametrize(
    ("asked", "variables", "expected"),
    [
        ("", {}, "no store is named"),
        ("prdo", {}, "no context has the name 'prdo'; there are: prod, test"),
        ("", {"DOS_CONTEXT": "prdo"}, "no context has the name 'prdo'"),
        ("", {"DOS_STORE": "h1:9999"}, "DOS_STORE: a URL must begin with dos://"),
        ("", {"DOS_STORE": "dos://h1/app"}, "DOS_STORE names the directory app"),
    ],
)
def test_what_names_no_store_is_refused(asked: str, variables: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        find_store(asked, variables, Contexts(contexts=BOTH.contexts), Settings())


@pytest.mark.parametrize(
    ("asked", "variables", "expected"),
    [
        ("", {}, {"DOS_TLS": "/etc/dos/tls"}),
        ("own", {}, {"DOS_TLS_CA": "/ca", "DOS_TLS_CERT": "/cert", "DOS_TLS_KEY": "/key"}),
        ("plain", {}, {}),
        ("", {"DOS_STORE": "dos://v"}, {}),  # a store that is named otherwise
        ("", {"DOS_TLS_CA": "/other"}, {}),  # of the variables, or of the file: never mixed
        ("", {"DOS_TLS": ""}, {}),
    ],
)
def test_tls_is_used_for_the_store_that_it_is_named_beside(
    asked: str, variables: dict[str, str], expected: dict[str, str]
) -> None:
    contexts = Contexts(
        current="prod",
        contexts={
            "prod": StoreContext("dos://p1", tls="/etc/dos/tls"),
            "own": StoreContext("dos://o1", tls_ca="/ca", tls_cert="/cert", tls_key="/key"),
            "plain": TEST,
        },
    )
    file = Settings(store="dos://s", tls="/etc/dos/other")
    assert tls_to_set(find_store(asked, variables, contexts, file), variables) == expected
    from_file = find_store("", variables, Contexts(), file)
    assert ("DOS_TLS" in from_file.tls) == ("DOS_STORE" not in variables)


HERE = NamedStore("dos://p1:9999", "/t", "context prod", {})


@pytest.mark.parametrize(
    ("words", "most", "expected"),
    [
        ([], 1, ["URL"]),
        (["wordcount"], 2, ["URL", "wordcount"]),
        (["wordcount", "7"], 3, ["URL", "wordcount", "7"]),
        (["dos://h1", "wordcount"], 2, None),
        (["h1:9999", "wordcount"], 2, None),  # a URL that is not valid: the command refuses it
        (["dos:///notes/greetings"], 1, ["URL/notes/greetings"]),
        (["dos:///"], 1, ["URL/"]),
    ],
)
def test_the_store_is_put_where_a_person_would_type_it(
    words: list[str], most: int, expected: list[str] | None
) -> None:
    line = GivenArguments(
        words,
        words,
        store_at=0,
        words_before=0,
        requires_store=True,
        arguments_max=most,
        has_token_file=False,
    )
    assert line.needs_store == (expected is not None)
    if expected is not None:
        urls = [word.replace("URL", HERE.url) for word in expected]
        assert completed(line, HERE) == ["--token-file", "/t", *urls]
        assert completed(line._replace(has_token_file=True), HERE) == urls
        assert completed(line._replace(has_token_file=None), HERE) == urls


def test_a_store_that_is_another_argument_is_put_in_its_place() -> None:
    words = ["--json", "s3://backups/dos", "wordcount"]
    line = GivenArguments(words, words[1:], 1, 2, requires_store=True, arguments_max=3, has_token_file=None)
    assert completed(line, HERE) == ["--json", "s3://backups/dos", HERE.url, "wordcount"]
    assert not line._replace(arguments=["s3://backups/dos", "dos://h1", "wordcount"]).needs_store


def test_a_token_is_not_added_if_the_line_names_another_store_too() -> None:
    words = ["wordcount", "dos://other/backups"]  # dos region backup
    line = GivenArguments(words, words, 0, 0, requires_store=True, arguments_max=3, has_token_file=False)
    assert completed(line, HERE) == [HERE.url, *words]


def test_a_command_that_takes_no_store_is_left_alone() -> None:
    line = GivenArguments(
        ["a.journal"],
        ["a.journal"],
        store_at=None,
        words_before=0,
        requires_store=False,
        arguments_max=2,
        has_token_file=False,
    )
    assert not line.needs_store


def test_a_name_is_not_given_twice_and_a_context_that_is_removed_is_not_current() -> None:
    with pytest.raises(ConfigurationError, match="context prod is dos://p1,p2,p3"):
        BOTH.with_context("prod", TEST, use=False)
    assert BOTH.with_context("prod", PROD, use=False) == BOTH
    assert BOTH.without("prod") == Contexts(contexts={"test": TEST})
    assert BOTH.without("test").current == "prod"


def test_a_table_of_dos_toml_that_no_command_reads_is_refused() -> None:
    assert decode_settings('[serve]\ndata = "/d"', "dos.toml").serve == {"data": "/d"}
    with pytest.raises(ConfigurationError, match=r"dos\.toml: Object contains unknown field `servers`"):
        decode_settings("[servers]", "dos.toml")
