//! Tests output on terminals of every size and kind. `snapshots/` contains the screens.

use anyhow::{Result, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::pty::Pty;

use crate::home::{bottle, run};

/// The size of a terminal, in rows and columns.
type Size = (u16, u16);

const USUAL: Size = (24, 80);

/// A command whose screen the tests check.
struct Shown {
    arguments: &'static [&'static str],
    /// The text to wait for, and the key that then exits the command; `None` for a command that exits by itself.
    until: Option<(&'static str, &'static str)>,
}

const fn ends(arguments: &'static [&'static str]) -> Shown {
    Shown { arguments, until: None }
}

const SHOWN: &[Shown] = &[
    Shown { arguments: &["start"], until: Some(("Esc cancels", "\x1b")) },
    Shown { arguments: &["start", "--bottle", "wide", "plain"], until: Some(("[y/N/e/?]", "\x1b")) },
    ends(&["list"]),
    ends(&["list", "agents"]),
    ends(&["info", "plain", "--bottle", "wide"]),
    ends(&["info", "torn"]),
    ends(&["info", "plian"]),
    ends(&["settings"]),
    Shown { arguments: &["supervise"], until: Some(("q quits", "q")) },
    ends(&["cleanup", "--dry-run"]),
];

/// Help pages. They have no snapshots, because they change often and are read in `docs/`.
const READ: &[Shown] = &[ends(&["help"]), ends(&["help", "start"]), ends(&["help", "threat-model"])];

const WIDE: &str = "\
---
backend: fake
agent_provider: {template: command, command: [echo, hi]}
env: {TOKEN: $THE_TOKEN}
egress:
  routes:
    - host: api.example.com
      auth: {scheme: Bearer, token_ref: env:API_KEY}
      matches: [{paths: [{type: prefix, value: /v1}], methods: [POST]}]
    - host: a-very-long-name-of-a-host.example.com
      inspect: false
    - host: inner.example.com
      private: true
---
";

/// The id of a proposal for which no keeper waits.
const ASKED: &str = "00000000-0000-4000-8000-000000000000";
const PROPOSAL: &str = r#"{
    "id": "00000000-0000-4000-8000-000000000000", "bottle_slug": "b", "tool": "egress-allow",
    "proposed_file": "- host: 名前.example\n", "justification": "Prüft 名前",
    "arrival_timestamp": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z"
}"#;

/// Returns a home with manifests, bottles, damaged state and a proposal, so that every screen has content.
fn full_home() -> Result<TestHome> {
    let mut home = TestHome::new()?;
    home.bottle("nap", &bottle("[sleep, \"600\"]"))?.agent("nap", "---\nbottle: nap\n---\n# Sleeps.\n")?;
    home.bottle("wide", WIDE)?;
    let about =
        "# Prüft 名前\n\nWhat it is about is a long line, which does not end before any terminal does.\n";
    home.agent("plain", &format!("---\nbottle: nap\n---\n{about}"))?;
    home.agent("torn", "---\nbottel: nap\n---\n")?;
    for label in
        [&["--label", "Nacht 名前 and a long name"][..], &["--label", "b", "--color-label", "magenta"]]
    {
        let arguments = [&["start", "nap", "--detach", "--yes"], label].concat();
        let _ = run(&home, &arguments)?.expect_code(0);
    }
    home.write("home/.bottle/state/damaged/metadata.json", "{")?;
    home.write("home/.bottle/queue/b/processed/none", "")?;
    home.write(&format!("home/.bottle/queue/b/{ASKED}.proposal.json"), PROPOSAL)?;
    Ok(home)
}

/// A kind of terminal, as the environment describes it, and what `bottle` may write to it.
struct Kind {
    name: &'static str,
    environment: &'static [(&'static str, &'static str)],
    colors: bool,
    sequences: bool,
    letters: bool,
}

const USUAL_KIND: Kind =
    Kind { name: "usual", environment: &[], colors: true, sequences: true, letters: true };

const KINDS: &[Kind] = &[
    USUAL_KIND,
    Kind {
        name: "over ssh",
        environment: &[("SSH_CONNECTION", "192.0.2.1 4000 192.0.2.2 22")],
        ..USUAL_KIND
    },
    Kind { name: "NO_COLOR", environment: &[("NO_COLOR", "1")], colors: false, ..USUAL_KIND },
    Kind { name: "CLICOLOR", environment: &[("CLICOLOR", "0")], colors: false, ..USUAL_KIND },
    Kind { name: "LC_ALL", environment: &[("LC_ALL", "C")], letters: false, ..USUAL_KIND },
    Kind { name: "POSIX", environment: &[("LANG", "POSIX")], letters: false, ..USUAL_KIND },
    Kind { name: "dumb", environment: &[("TERM", "dumb")], colors: false, sequences: false, ..USUAL_KIND },
];

/// Runs a command on a terminal. Returns the screen, everything that the command has written, and the
/// terminal.
fn show(
    home: &TestHome,
    shown: &Shown,
    kind: &Kind,
    (rows, columns): Size,
) -> Result<(String, Vec<u8>, Pty)> {
    let mut program = home.program(shown.arguments.iter().copied())?;
    for (name, value) in kind.environment {
        program.env(name, value);
    }
    let mut pty = Pty::spawn(program.command(), rows, columns)?;
    let screen = match shown.until {
        Some((words, key)) => {
            // A terminal without cursor control shows questions in lines or a list of proposals instead.
            let asked =
                |screen: &str| [words, "[1-", "shows one in full"].iter().any(|it| screen.contains(it));
            pty.wait_until(words, asked)?;
            let screen: Vec<String> = pty.screen().lines().map(|line| line.trim_end().to_owned()).collect();
            let screen = screen.join("\n");
            pty.type_keys(key)?;
            screen
        }
        None => pty.last_screen()?,
    };
    pty.wait_exit()?;
    pty.last_screen()?;
    Ok((screen, pty.raw(), pty))
}

/// Returns the parameters of every colour sequence in the output.
fn painted(raw: &str) -> Vec<&str> {
    let numbers = |sequence: &'_ str| -> Option<usize> {
        let end = sequence.find(|letter: char| !letter.is_ascii_digit() && letter != ';')?;
        sequence[end..].starts_with('m').then_some(end)
    };
    raw.split("\x1b[").skip(1).filter_map(|sequence| Some(&sequence[..numbers(sequence)?])).collect()
}

/// Whether these parameters select only text attributes, and colours that are readable on any background: the
/// terminal's own red to cyan. Black, white, background colours and custom colours are not allowed.
fn is_readable(code: &str) -> bool {
    let mut parts = code.split(';');
    while let Some(part) = parts.next() {
        let known = match part {
            "" | "0" | "1" | "2" | "4" | "22" | "24" | "39" | "49" | "59" => true,
            "31" | "32" | "33" | "34" | "35" | "36" => true,
            // The six readable colours can also be selected by number.
            "38" => {
                parts.next() == Some("5") && matches!(parts.next(), Some("1" | "2" | "3" | "4" | "5" | "6"))
            }
            _ => false,
        };
        if !known {
            return false;
        }
    }
    true
}

fn is_colour(code: &str) -> bool {
    code.split(';').any(|part| matches!(part, "31" | "32" | "33" | "34" | "35" | "36" | "38"))
}

#[test]
fn every_screen_fits_its_terminal() -> Result<()> {
    let home = full_home()?;
    for kind in KINDS {
        for shown in SHOWN.iter().chain(READ) {
            let what = format!("{:?} on a terminal that is {}", shown.arguments, kind.name);
            let (screen, raw, pty) = show(&home, shown, kind, USUAL)?;
            let raw = String::from_utf8(raw)?;
            for code in painted(&raw) {
                ensure!(is_readable(code), "{what}: {code:?} in {raw:?}");
                ensure!(kind.colors || !is_colour(code), "{what}: {code:?} in {raw:?}");
            }
            ensure!(kind.sequences || !raw.contains('\x1b'), "{what}: {raw:?}");
            ensure!(kind.letters || raw.is_ascii(), "{what}: {raw:?}");
            ensure!(pty.left_on().is_empty() && pty.is_cooked()?, "{what}: {:?}", pty.left_on());
            ensure!(pty.broken_lines().is_empty(), "{what}: {:?}\n{screen}", pty.broken_lines());
            if kind.colors && kind.letters {
                let (usual, ..) = show(&home, shown, &USUAL_KIND, USUAL)?;
                assert_eq!(screen, usual, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn shows_every_screen() -> Result<()> {
    let home = full_home()?;
    let ascii = &KINDS[4];
    let sizes: [(&str, &Kind, Size); 5] = [
        ("80x24", &USUAL_KIND, USUAL),
        ("200x50", &USUAL_KIND, (50, 200)),
        ("40x10", &USUAL_KIND, (10, 40)),
        ("0x0", &USUAL_KIND, (0, 0)),
        ("ascii", ascii, USUAL),
    ];
    for (name, kind, size) in sizes {
        let mut text = String::new();
        for shown in SHOWN {
            // If the terminal reports no size, the default size is used.
            let (screen, _, pty) = show(&home, shown, kind, size)?;
            text += &format!("$ bottle {}\n{}\n\n", shown.arguments.join(" "), screen.trim_end());
            let widest = pty.broken_lines();
            ensure!(size.1 < 80 || widest.is_empty(), "{name}: {:?}: {widest:?}", shown.arguments);
        }
        let mut scrub = home.scrub()?;
        // The disk space of a bottle depends on the file system.
        scrub.add(r"\b\d+\.\d\d KiB\b", "[SIZE]")?;
        let text = scrub.apply(&text);
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, text) });
    }
    Ok(())
}
