//! Tests that each ignored test is run by a job of `.ci/run` or started by another test. The attribute of the ignored
//! test must name the job or the test.

use std::fs;
use std::path::Path;

use crate::broken::root;
use crate::sources;

/// An ignored test.
struct Ignored<'t> {
    file: &'t Path,
    name: &'t str,
    /// The reason in the attribute `ignore` of the test.
    reason: &'t str,
}

impl Ignored<'_> {
    /// Returns what is wrong with the test. Returns `None` if nothing is wrong.
    fn problem(&self, script: &str) -> Option<&'static str> {
        if self.reason.contains("started by ") {
            return None;
        }
        // The job `real-agents` runs all tests whose names begin with `real_`.
        let names_job = self.reason.split_once("`.ci/run ").and_then(|(_, rest)| rest.split('`').next());
        match names_job {
            None if !self.name.starts_with("real_") => Some("its reason names no job of .ci/run"),
            Some(job) if !script.contains(&format!("== {job} ]]")) => Some("its job is not in .ci/run"),
            _ if !script.lines().any(|line| self.is_run_by(line)) => Some("no line of .ci/run runs it"),
            _ => None,
        }
    }

    /// Whether a line of the script runs ignored tests of this file with this name.
    fn is_run_by(&self, line: &str) -> bool {
        let command = line.split(';').next().unwrap_or_default();
        let Some((cargo, arguments)) = command.split_once(" -- ") else { return false };
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let runs_ignored = arguments.contains(&"--ignored") || arguments.contains(&"--include-ignored");
        let suite = cargo.split_once("--test ").and_then(|(_, rest)| rest.split_whitespace().next());
        let is_in = |suite| self.file.iter().any(|part| Path::new(part).file_stem() == Some(suite));
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        runs_ignored
            && suite.is_none_or(|suite| is_in(suite.as_ref()))
            && (names.peek().is_none() || names.any(|name| self.name.contains(name)))
    }
}

/// Returns the ignored tests of a text. A test without a reason has an empty reason.
fn ignored<'t>(file: &'t Path, text: &'t str) -> impl Iterator<Item = Ignored<'t>> {
    text.split("\n").enumerate().filter_map(move |(number, line)| {
        let reason = line.trim_start().strip_prefix("#[ignore")?;
        let reason = reason.split('"').nth(1).unwrap_or_default();
        let name = text.split("\n").skip(number + 1).find_map(|line| line.split_once("fn "));
        Some(Ignored { file, name: name?.1.split('(').next()?, reason })
    })
}

#[test]
fn each_ignored_test_is_run_by_a_job_or_another_test() {
    let root = root().expect("root");
    let script = fs::read_to_string(root.join(".ci/run")).expect("read");
    let texts = sources::read(root, &["src", "crates", "sidecars", "tests"]).expect("read");
    let tests: Vec<Ignored<'_>> = texts.iter().flat_map(|(file, text)| ignored(file, text)).collect();
    assert!(tests.len() > 40, "{}", tests.len());
    let problems: Vec<String> = tests
        .iter()
        .filter_map(|test| Some((test, test.problem(&script)?)))
        .map(|(test, problem)| format!("{} in {}: {problem}", test.name, test.file.display()))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_test_that_nothing_runs_is_found() {
    let script = "real() { cargo test --test agents -- --ignored real_; }\nif [[ ${1:-} == soak ]]; then\n\
                  cargo test --test crash -- --ignored --nocapture more_often\ncargo test --test plain -- quick\nfi\n";
    for (file, attribute, name, expected) in [
        ("tests/agents/a.rs", "ignore = \"fetches it\"", "real_a", None),
        ("tests/other/a.rs", "ignore = \"fetches it\"", "real_a", Some("no line of .ci/run runs it")),
        ("tests/crash/a.rs", "ignore = \"slow: `.ci/run soak`\"", "it_is_killed_more_often", None),
        ("tests/crash.rs", "ignore = \"slow: `.ci/run soak`\"", "more_often", None),
        (
            "tests/crash.rs",
            "ignore = \"slow: `.ci/run soak`\"",
            "renamed",
            Some("no line of .ci/run runs it"),
        ),
        (
            "tests/crash.rs",
            "ignore = \"slow: `.ci/run sock`\"",
            "more_often",
            Some("its job is not in .ci/run"),
        ),
        ("tests/plain.rs", "ignore = \"`.ci/run soak`\"", "quick", Some("no line of .ci/run runs it")),
        ("tests/crash.rs", "ignore = \"slow\"", "more_often", Some("its reason names no job of .ci/run")),
        ("tests/crash.rs", "ignore", "more_often", Some("its reason names no job of .ci/run")),
        ("src/a.rs", "ignore = \"started by the test below\"", "a", None),
    ] {
        let text = format!("#[test]\n    #[{attribute}]\n    async fn {name}() {{}}\n");
        let found: Vec<_> = ignored(Path::new(file), &text).map(|test| test.problem(script)).collect();
        assert_eq!(found, [expected], "{file}: {text}");
    }
}
