"""`pytest --superopt`: files of rules are collected, and a rule that is not proved fails with its counterexample."""

from __future__ import annotations

import pytest

import superopt.certify.rule_files
import superopt.certify.xla_rules  # noqa: F401  # pytester forgets what its runs load, and JAX is loaded once a process

RULES = """
good: A[*a]
  A + A  ==  A * 2

bad: A[*m *k]  B[*k *n]
  dot(A, B + B, k)  ==  dot(A, B, k)

broken: A[*a]
  A + ) == A
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.mkdir("rules")
    (pytester.path / "rules" / "a.txt").write_text(RULES)
    return pytester


def test_each_rule_is_a_test(folder: pytest.Pytester) -> None:
    done = folder.runpytest_inprocess("--superopt", "rules", "-v", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(
        [
            "rules/a.txt::good PASSED*",
            "rules/a.txt::bad FAILED*",
            "rules/a.txt::broken FAILED*",
            "REFUTED bad (forward) at rules/a.txt:5",
            "  A?? = 1.0",
            "  B?? = 1.0",
            "  they differ at ??: 2.0 and 1.0",
            "UNKNOWN broken (forward) at rules/a.txt:8: RuleError:*",
        ]
    )


def test_one_rule_can_be_chosen(folder: pytest.Pytester) -> None:
    folder.runpytest_inprocess("--superopt", "rules/a.txt::good").assert_outcomes(passed=1)


def test_places_are_those_of_the_rules(folder: pytest.Pytester) -> None:
    items, _ = folder.inline_genitems("--superopt", "rules")
    assert [(item.name, item.location[:2]) for item in items] == [
        ("good", ("rules/a.txt", 1)), ("bad", ("rules/a.txt", 4)), ("broken", ("rules/a.txt", 7))
    ]  # fmt: skip


def test_nothing_is_collected_unless_asked(folder: pytest.Pytester) -> None:
    assert folder.runpytest_inprocess("rules").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_files_are_those_of_the_configuration(folder: pytest.Pytester) -> None:
    folder.makeini("[pytest]\nsuperopt_files = *.math")
    (folder.path / "rules" / "b.math").write_text("one: A[*a]\n  A + 0 == A\n")
    items, _ = folder.inline_genitems("--superopt", "rules")
    assert [item.name for item in items] == ["one"]


def test_a_file_without_rules_is_an_error(folder: pytest.Pytester) -> None:
    (folder.path / "rules" / "empty.txt").write_text("\n")
    done = folder.runpytest_inprocess("--superopt", "rules/empty.txt")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*no rule to verify*"])


def test_statements_of_python_are_tests(folder: pytest.Pytester) -> None:
    (folder.path / "rules" / "my_rules.py").write_text(
        "import superopt\nsuperopt.statement(lambda x: x + 1, lambda x: x, 'n', name='plus')\n"
    )
    done = folder.runpytest_inprocess("--superopt", "rules/my_rules.py")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["REFUTED plus (statement) at rules/my_rules.py:2"])


def test_the_plugin_loads_nothing_where_no_rules_are_asked_for(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # others load NumPy
    folder.makepyfile("import sys\ndef test_it():\n    assert not {'numpy', 'z3', 'jax'} & set(sys.modules)\n")
    folder.runpytest_subprocess("-p", "superopt.commands.pytest_plugin").assert_outcomes(passed=1)
