//! Each command of `commands.txt` has the finding of its section, and its verdict in each mode, both alone and as a
//! script of three shells.

#![allow(clippy::unwrap_used)]

use bottle_command_policy::{Approval, Decision, Mode, Rule, assess, assess_file_change};

/// The commands, each with the name of its section.
fn commands() -> Vec<(&'static str, String)> {
    let mut section = "";
    let mut commands = Vec::new();
    for line in include_str!("commands.txt").lines() {
        match line.strip_prefix("== ") {
            Some(name) => section = name,
            None if line.is_empty() || line.starts_with("# ") || line == "#" => {}
            None => commands.push((section, line.replace('␤', "\n"))),
        }
    }
    commands
}

/// The reason why a command does not have the verdict of its section. `None` if the command has this verdict.
fn mistake(section: &str, command: &str) -> Option<String> {
    let assessment = assess(command);
    let verdicts = Mode::ALL.map(|mode| assessment.decide(mode, &[]));
    if section == "read" {
        let is_right = assessment.is_read_only && verdicts.iter().all(|verdict| *verdict == Decision::Allow);
        return (!is_right).then(|| format!("not read-only: {command}\n    {:?}", assessment.findings));
    }
    let rule = Rule::named(section).expect("each section names a rule");
    let has_finding = assessment.findings.iter().any(|finding| finding.rule == rule);
    let is_right = match &verdicts {
        [Decision::Deny(_), Decision::Deny(_), Decision::Deny(_)] => rule.is_floor(),
        [Decision::Ask(_), Decision::Ask(_), Decision::Allow] => !rule.is_floor(),
        _ => false,
    };
    let is_right = is_right && has_finding && !assessment.is_read_only;
    (!is_right).then(|| format!("not {section}: {command}\n    {:?}", assessment.findings))
}

#[test]
fn each_command_has_the_verdict_of_its_section() {
    let commands = commands();
    assert!(commands.len() >= 400, "{} commands", commands.len());
    let mistakes: Vec<String> =
        commands.iter().filter_map(|(section, command)| mistake(section, command)).collect();
    assert!(
        mistakes.is_empty(),
        "{} of {} commands:\n{}",
        mistakes.len(),
        commands.len(),
        mistakes.join("\n")
    );
}

#[test]
fn each_command_has_the_same_verdict_as_a_script_of_three_shells() {
    let mut mistakes = Vec::new();
    for (section, command) in commands() {
        for shell in ["sh -c", "bash -c", "zsh -c"] {
            let wrapped = format!("{shell} {}", shlex::try_quote(&command).unwrap());
            mistakes.extend(mistake(section, &wrapped));
        }
    }
    assert!(mistakes.is_empty(), "{} mistakes:\n{}", mistakes.len(), mistakes.join("\n"));
}

#[test]
fn an_approval_covers_commands_of_its_rule_with_its_prefix() {
    let approval =
        |rule, words: &[&str]| Approval { rule, prefix: words.iter().map(|&word| word.to_owned()).collect() };
    let cargo = [approval(Rule::Command, &["cargo", "test"])];
    let is_allowed = |line: &str, approvals: &[Approval]| {
        assess(line).decide(Mode::Teenager, approvals) == Decision::Allow
    };
    assert!(is_allowed("cargo test", &cargo));
    assert!(is_allowed("cargo test -p x && ls", &cargo));
    assert!(!is_allowed("cargo testing", &cargo));
    assert!(!is_allowed("cargo build", &cargo));
    // Each finding must be approved.
    assert!(!is_allowed("cargo test; rm -rf build", &cargo));
    assert!(!is_allowed("cargo test > x", &cargo));
    // The commands around an approved command must be approved too.
    for line in
        ["LD_PRELOAD=x cargo test", "env LD_PRELOAD=x cargo test", "strace -o x cargo test", "./cargo test"]
    {
        assert!(!is_allowed(line, &cargo), "{line}");
    }
    for line in ["timeout 5 cargo test", "env LC_ALL=C cargo test", "sh -c 'cargo test'", "ls | cargo test"] {
        assert!(is_allowed(line, &cargo), "{line}");
    }
    // An approval of one rule does not approve another rule, and the floor accepts no approval.
    assert!(!is_allowed("rm -rf build", &[approval(Rule::Command, &["rm"])]));
    assert!(!is_allowed("rm -rf build", &[approval(Rule::DeleteFiles, &["rm"])]));
    assert!(is_allowed("rm -rf build", &[approval(Rule::DeleteTree, &["rm", "-rf", "build"])]));
    assert!(!is_allowed(
        "rm -rf /",
        &[approval(Rule::DeleteRoot, &["rm"]), approval(Rule::DeleteTree, &["rm"])]
    ));
    assert!(!is_allowed("make", &[approval(Rule::Command, &[])]));
}

#[test]
fn a_change_of_a_file_by_a_tool_asks_in_the_strictest_mode() {
    let paths = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect::<Vec<_>>();
    let change = assess_file_change("file_write", &paths(&["src/a.rs", "b"]));
    assert!(matches!(change.decide(Mode::BabySitter, &[]), Decision::Ask(asked) if asked.len() == 2));
    assert_eq!(change.decide(Mode::Teenager, &[]), Decision::Allow);
    assert_eq!(change.decide(Mode::LetItGo, &[]), Decision::Allow);
    let approved = |prefix: &[&str]| Approval { rule: Rule::ChangeFile, prefix: paths(prefix) };
    assert_eq!(change.decide(Mode::BabySitter, &[approved(&["file_write"])]), Decision::Allow);
    assert!(matches!(change.decide(Mode::BabySitter, &[approved(&["file_write", "b"])]), Decision::Ask(_)));
    assert!(matches!(change.decide(Mode::BabySitter, &[approved(&["file_delete"])]), Decision::Ask(_)));
    let any = assess_file_change("file_reset", &[]);
    assert!(
        matches!(any.decide(Mode::BabySitter, &[]), Decision::Ask(asked) if asked[0].command == ["file_reset"])
    );
    for path in [".netrc", "/etc/passwd", "x/.ssh/authorized_keys", "../../etc/../.aws/credentials"] {
        let change = assess_file_change("file_write", &paths(&["a", path]));
        assert!(matches!(change.decide(Mode::LetItGo, &[]), Decision::Deny(_)), "{path}");
    }
}

#[test]
fn an_approval_of_a_known_word_is_none_of_an_unknown_one() {
    let is_covered = |approved: &str, line: &str| {
        let findings = assess(approved).findings;
        let approvals: Vec<_> = findings
            .into_iter()
            .map(|finding| Approval { rule: finding.rule, prefix: finding.command })
            .collect();
        assess(line).decide(Mode::Teenager, &approvals) == Decision::Allow
    };
    for line in ["touch $X", "touch a$X", "touch a…", "touch a\\…", r"touch a\\…", "touch 'a\u{fffd}'"]
    {
        assert!(is_covered(line, line), "{line}");
    }
    for (approved, line) in [
        ("touch …", "touch $X"),
        ("touch a…", "touch a$X"),
        ("touch 'a\\…'", "touch a$X"),
        ("touch $X", "touch …"),
        ("touch $X", "touch x"),
        ("touch x", "touch $X"),
    ] {
        assert!(!is_covered(approved, line), "{approved} covers {line}");
    }
}

#[test]
fn an_approval_of_an_unreadable_line_is_for_this_line_alone() {
    let start = format!("echo {}", "x".repeat(300));
    let approvals: Vec<_> = assess(&format!("{start} 'a"))
        .findings
        .into_iter()
        .map(|finding| Approval { rule: finding.rule, prefix: finding.command })
        .collect();
    let is_allowed = |line: &str| assess(line).decide(Mode::LetItGo, &approvals) == Decision::Allow;
    assert!(is_allowed(&format!("{start} 'a")));
    assert!(!is_allowed(&format!("{start} 'b")));
    assert!(!is_allowed(&format!("{start} 'a ")));
}

#[test]
fn what_cannot_be_read_asks_in_each_mode() {
    let nested = "(".repeat(5_000);
    let long = "x".repeat(100_000);
    let deep = format!("{}ls{}", "$(".repeat(300), ")".repeat(300));
    for line in ["'", "ls \"", "if", "ls |", "ls && ", "a\0b", ")", "for", &nested, &long, &deep] {
        let assessment = assess(line);
        for mode in Mode::ALL {
            assert!(
                matches!(assessment.decide(mode, &[]), Decision::Ask(_)),
                "{} {assessment:?}",
                &line[..line.len().min(40)]
            );
        }
    }
    assert_eq!(assess("").decide(Mode::BabySitter, &[]), Decision::Allow);
    assert_eq!(assess("# a comment").decide(Mode::BabySitter, &[]), Decision::Allow);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(512))]

    #[test]
    fn no_line_panics(line in r#"[-a-z0-9 '"\\$(){}\[\]<>|&;=*?~/!#`\n:+@%é]{0,60}"#) {
        let _ = assess(&line);
    }

    #[test]
    fn no_change_of_a_command_makes_a_dangerous_line_read_only(
        before in "(ls|cat x|echo a|true|cd src)",
        between in "( && |; | \\|\\| |\n| & )",
    ) {
        let assessment = assess(&format!("{before}{between}rm -rf /"));
        proptest::prop_assert!(!assessment.is_read_only);
        proptest::prop_assert!(assessment.findings.iter().any(|finding| finding.rule == Rule::DeleteRoot));
    }
}
