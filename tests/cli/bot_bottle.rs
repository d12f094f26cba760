//! Tests what a user of bot-bottle can reuse: manifests that `bottle init --import` copies, and environment variables.
//!
//! `docs/coming-from.md` lists the differences between bot-bottle and this program. Each entry of the list has a test in this file, which
//! imports a bot-bottle home. [`DIFFERENCES`] contains the entries.

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;

use crate::home::{home, run, snapshot, transcript, transcripts};

const OTHER: &str = "---\nextends: [base, tools]\negress:\n  routes: [{host: api.example.com, dlp: {outbound_detectors: [entropy]}}]\n\
    git-gate: {repos: {app: {url: 'ssh://git@git.example.com/app.git', key: {provider: static, path: ~/.ssh/id}}}}\n\
    agent_provider: {template: claude, dockerfile: agent.Dockerfile}\n---\n";

#[test]
fn init_imports_another_tools_manifests_with_notes() -> Result<()> {
    let home = TestHome::new()?;
    home.write("home/.bot-bottle/bottles/base.md", "---\nenv: {A: b}\n---\n")?;
    home.write("home/.bot-bottle/bottles/tools.md", "---\nsupervise: false\n---\n")?;
    home.write("home/.bot-bottle/bottles/work.md", OTHER)?;
    home.write(
        "home/.bot-bottle/bottles/old.md",
        "---\ngit-gate: {repos: {a: {url: 'ssh://git@a.example/a', identity: ~/.ssh/id}}}\n---\n",
    )?;
    home.write("home/.bot-bottle/bottles/Bad Name.md", "---\n---\n")?;
    home.write("home/.bot-bottle/agents/worker.md", "---\nbottle: work\n---\nWork.\n")?;
    home.write("home/.bot-bottle/agents/binary.md", "\u{0}")?;
    let directory = home.home().join(".bot-bottle");
    let directory = directory.to_str().expect("text");
    let text = transcripts(
        &home,
        &[
            &["init", "--import", directory],
            &["init", "--import", directory, "--json"],
            &["init", "--import", "nowhere"],
            &["init", "--import", "."],
        ],
    )?;
    snapshot!(text);
    Ok(())
}

/// The page that lists the differences.
const PAGE: &str = include_str!("../../docs/coming-from.md");

/// A repository, in the format of bot-bottle's manifests.
const REPO: &str = "git-gate: {repos: {app: {url: 'ssh://git@git.example.com/app.git', key: {provider: static, path: ~/.ssh/id}, host_key: ssh-ed25519 AAAA}}}";

/// A difference that [`PAGE`] lists.
struct Difference {
    /// The first words of the entry on the page.
    entry: &'static str,
    /// The frontmatter of a bot-bottle manifest to which the entry applies.
    front: &'static str,
    /// Words of a note that `bottle init --import` prints about the manifest; empty if it prints no note.
    note: &'static str,
    /// Checks that the imported manifest `it` has the meaning that the entry describes.
    check: fn(&TestHome) -> Result<()>,
}

const DIFFERENCES: [Difference; 15] = [
    Difference {
        entry: "`agent_provider.dockerfile`",
        front: "agent_provider: {template: claude, auth_token: KEY, dockerfile: agent.Dockerfile}",
        note: "relative to the home",
        check: |home| {
            if !home.runs("an imported Dockerfile", "docker")? {
                return Ok(());
            }
            let start = ["start", "it", "--dry-run", "--backend", "docker"];
            home.write("project/agent.Dockerfile", "FROM scratch\n")?;
            let missing = "the Dockerfile agent.Dockerfile cannot be read";
            says(home, &start, missing)?;
            home.write("home/.bottle/agent.Dockerfile", "FROM scratch\n")?;
            ensure!(!transcript(home, &start)?.contains(missing), "the file below the home is not read");
            Ok(())
        },
    },
    Difference {
        entry: "The agent's own `Authorization`",
        front: "egress: {routes: [{host: api.example.com}, {host: own.example.com}]}",
        note: "pass_credentials: true",
        check: |home| {
            let with_key = ["policy", "check", "--agent", "it", "-H", "Authorization: Bearer x", "GET"];
            let with_key = [&with_key[..], &["https://api.example.com/"]].concat();
            says(home, &with_key, "without credentials")?;
            home.write(
                "home/.bottle/bottles/it.md",
                "---\nagent_provider: {template: command, command: [a]}\n\
                 egress: {routes: [{host: api.example.com, pass_credentials: true}]}\n---\n",
            )?;
            says(home, &with_key, "with the agent's own credentials")
        },
    },
    Difference {
        entry: "Plain HTTP",
        front: "egress: {routes: [{host: api.example.com}]}",
        note: "lists port 80",
        check: |home| {
            verdict(home, "GET", "http://api.example.com/", "deny")?;
            verdict(home, "GET", "https://api.example.com/", "allow")?;
            let route = "egress: {routes: [{host: api.example.com, ports: [80]}]}";
            home.write("home/.bottle/bottles/it.md", &format!("---\n{route}\n---\n"))?;
            verdict(home, "GET", "http://api.example.com/", "allow")?;
            let route = "egress: {routes: [{host: api.example.com, ports: [80], auth: {scheme: Bearer, token_ref: T}}]}";
            home.write("home/.bottle/bottles/it.md", &format!("---\n{route}\n---\n"))?;
            says(home, &["info", "it"], "exit 3")
        },
    },
    Difference {
        entry: "A route for the host of the template's API",
        front: "agent_provider: {template: claude, auth_token: KEY}\negress: {routes: [{host: api.anthropic.com}]}",
        note: "",
        check: |home| {
            says(home, &["info", "it"], "agent_provider.route")?;
            says(home, &["info", "it"], "exit 3")?;
            let front = "agent_provider: {template: claude, route: {matches: [{methods: [POST], paths: [{type: exact, value: /v1/messages}]}]}}";
            home.write("home/.bottle/bottles/it.md", &format!("---\n{front}\n---\n"))?;
            verdict(home, "POST", "https://api.anthropic.com/v1/messages", "allow")
        },
    },
    Difference {
        entry: "`role` in a route",
        front: "egress: {routes: [{host: api.example.com, role: x}]}",
        note: "this key is reserved",
        check: |home| says(home, &["info", "it"], "exit 3"),
    },
    Difference {
        entry: "`git-gate.repos`: the git gate refuses",
        front: REPO,
        note: "needs `refs.allow`",
        // The tests of the git gate test the push itself.
        check: |home| says(home, &["info", "it"], "push any branch but the default"),
    },
    Difference {
        entry: "`git-gate.repos` of several bottles",
        front: REPO,
        note: "field by field",
        check: |home| {
            home.write(
                "home/.bottle/bottles/other.md",
                "---\ngit-gate: {repos: {app: {key: {provider: static, path: ~/.ssh/other}}}}\n---\n",
            )?;
            let both = ["info", "it", "--bottle", "it", "--bottle", "other"];
            says(home, &both, "ssh://git@git.example.com/app.git")?;
            says(home, &[&both[..], &["--explain"]].concat(), ".ssh/other")
        },
    },
    Difference {
        entry: "`git-gate.repos.NAME.identity`",
        front: "git-gate: {repos: {app: {url: 'ssh://git@git.example.com/app.git', identity: ~/.ssh/id}}}",
        note: "unknown key `identity`",
        check: |home| {
            says(home, &["info", "it"], "exit 3")?;
            let front = REPO;
            home.write("home/.bottle/bottles/it.md", &format!("---\n{front}\n---\n"))?;
            says(home, &["info", "it"], "exit 0")
        },
    },
    Difference {
        entry: "Several parents in `extends`",
        front: "extends: [left, right]",
        note: "no longer resets",
        check: |home| {
            let base = "---\negress: {routes: [{host: api.example.com}]}\n---\n";
            home.write("home/.bottle/bottles/base.md", base)?;
            let left =
                "extends: base\nsupervise: false\nagent_provider: {template: command, command: [mine]}";
            home.write("home/.bottle/bottles/left.md", &format!("---\n{left}\n---\n"))?;
            home.write("home/.bottle/bottles/right.md", "---\nextends: base\n---\n")?;
            let info = run(home, &["info", "it", "--json"])?.expect_code(0).json()?.to_string();
            ensure!(info.matches("api.example.com").count() == 1 && info.contains("mine"), "{info}");
            let all = transcript(home, &["info", "it", "--explain"])?;
            ensure!(all.lines().any(|line| line.contains("supervise") && line.contains("false")), "{all}");
            Ok(())
        },
    },
    Difference {
        entry: "The detector `entropy`",
        front: "egress: {routes: [{host: api.example.com, dlp: {outbound_detectors: [entropy]}}]}",
        note: "thresholds by alphabet",
        check: |home| {
            let random = "q8Zr3vT1xWc7LmN0pKs4YdJh6GfB2aEuQ9oXiVtRnCzMbAwD5lHyUq8Zr3vT1xWc7LmN0pKs4YdJ";
            let decimal = "31415926535897932384626433832795028841971693993751058209749445923078164062";
            let url = "https://api.example.com/";
            let check = |text: &str| {
                let header = format!("X-Text: {text}");
                transcript(home, &["policy", "check", "--agent", "it", "-H", &header, "GET", url])
            };
            ensure!(check(random)?.contains("as random as a key"), "{random}");
            // Random digits have less entropy for each byte than the letters of base64.
            ensure!(!check(decimal)?.contains("as random as a key"), "{decimal}");
            Ok(())
        },
    },
    Difference {
        entry: "The provider route",
        front: "agent_provider: {template: claude, auth_token: KEY}",
        note: "",
        check: |home| {
            verdict(home, "POST", "https://api.anthropic.com/v1/messages", "allow")?;
            verdict(home, "GET", "https://api.anthropic.com/v1/models", "deny")?;
            let front = "agent_provider: {template: claude, route: {extend: true, matches: [{paths: [{value: /v1/models}]}]}}";
            home.write("home/.bottle/bottles/it.md", &format!("---\n{front}\n---\n"))?;
            verdict(home, "GET", "https://api.anthropic.com/v1/models", "allow")?;
            verdict(home, "POST", "https://api.anthropic.com/v1/messages", "allow")
        },
    },
    Difference {
        entry: "`settings.startup_args`",
        front: "agent_provider: {template: claude, auth_token: KEY, settings: {startup_args: ['']}}",
        note: "startup_args",
        check: |home| says(home, &["info", "it"], "exit 3"),
    },
    Difference {
        entry: "Environment variables",
        front: "agent_provider: {template: command, command: [env]}\nbackend: fake",
        note: "BOT_BOTTLE_TIMEOUT has no effect",
        check: |home| {
            let started = transcript(home, &["start", "it", "--yes"])?;
            ensure!(started.contains("BOT_BOTTLE_BACKEND is read as BOTTLE_BACKEND; rename it"), "{started}");
            ensure!(started.contains("BOT_BOTTLE_TIMEOUT has no effect"), "{started}");
            let inside = started.split("----- stderr").next().unwrap_or_default();
            ensure!(inside.contains("HOME=") && !inside.contains("BOT_BOTTLE"), "{started}");
            Ok(())
        },
    },
    Difference {
        entry: "`bot-bottle.json`",
        front: "agent_provider: {template: command, command: ['true']}\nbackend: fake",
        note: "",
        check: |home| {
            let file =
                |path: &str| format!("[HOME]{path}/bot-bottle.json has no effect: write each agent to");
            home.write("home/old/bottles/other.md", "---\n---\n")?;
            home.write("home/old/bot-bottle.json", "{}")?;
            let old = home.home().join("old");
            let old = old.to_str().context("text")?;
            says(home, &["init", "--import", old], &file("/old"))?;
            let started = transcript(home, &["start", "it", "--yes"])?;
            ensure!(!started.contains("bot-bottle.json"), "{started}");
            home.write("home/bot-bottle.json", "{}")?;
            says(home, &["start", "it", "--yes"], &file(""))
        },
    },
    Difference {
        entry: "An image",
        front: "agent_provider: {template: command, command: [sh]}",
        note: "",
        check: |home| {
            if home.runs("an imported bottle without an image", "linux")? {
                says(home, &["start", "it", "--dry-run", "--backend", "linux"], "exit 0")?;
            }
            let front = "agent_provider: {template: command, command: [sh], image: ./images/x.tar}";
            home.write("home/.bottle/bottles/it.md", &format!("---\n{front}\n---\n"))?;
            says(home, &["info", "it", "--explain"], "image: ./images/x.tar")
        },
    },
];

/// Fails if the transcript of a command does not contain these words.
fn says(home: &TestHome, arguments: &[&str], words: &str) -> Result<()> {
    let text = transcript(home, arguments)?;
    ensure!(text.contains(words), "{words}: {text}");
    Ok(())
}

/// Fails if the verdict of the agent `it`'s proxy on a request is not the expected one.
fn verdict(home: &TestHome, method: &str, url: &str, expected: &str) -> Result<()> {
    let answer = run(home, &["policy", "check", "--agent", "it", method, url, "--json"])?.json()?;
    ensure!(answer["verdict"] == expected, "{method} {url}: {answer}");
    Ok(())
}

/// Returns the beginnings of the entries in the page's list of differences.
fn entries() -> Result<Vec<&'static str>> {
    let list = PAGE.split("Check these settings afterwards:").nth(1).context("the list")?;
    let list = list.split("This bottle manifest works in both tools").next().context("its end")?;
    Ok(list.split("\n- ").skip(1).collect())
}

#[test]
fn each_listed_difference_is_as_described() -> Result<()> {
    let mut unlisted = entries()?;
    for Difference { entry, front, note, check } in DIFFERENCES {
        let before = unlisted.len();
        unlisted.retain(|listed| !listed.starts_with(entry));
        ensure!(unlisted.len() + 1 == before, "{entry} is not in the list once");
        let mut home = TestHome::new()?;
        home.env("BOT_BOTTLE_TIMEOUT", "9").env("BOT_BOTTLE_BACKEND", "fake");
        home.write("home/.bot-bottle/bottles/it.md", &format!("---\n{front}\n---\n"))?;
        home.write("home/.bot-bottle/agents/it.md", "---\nbottle: it\n---\nWork.\n")?;
        let imported = transcript(&home, &["init", "--import"])?;
        ensure!(imported.contains("[BOTTLE_HOME]/bottles/it.md"), "{entry}: {imported}");
        ensure!(imported.contains(note), "{entry}: {imported}");
        check(&home).with_context(|| entry)?;
    }
    ensure!(unlisted.is_empty(), "these differences have no test: {unlisted:?}");
    Ok(())
}

/// The page shows a bottle manifest that works in both tools.
#[test]
fn the_manifest_for_both_tools_needs_no_note() -> Result<()> {
    let home = TestHome::new()?;
    let text = PAGE.split("```markdown bottle\n").nth(1).and_then(|rest| rest.split("```").next());
    home.write("home/.bot-bottle/bottles/both.md", text.context("the manifest")?)?;
    home.write("home/.bot-bottle/agents/both.md", "---\nbottle: both\n---\nWork.\n")?;
    let imported = run(&home, &["init", "--import"])?.expect_code(0).transcript();
    ensure!(!imported.contains("warning"), "{imported}");
    says(&home, &["info", "both"], "exit 0")
}

/// The page lists what the import does not overwrite or copy.
#[test]
fn an_import_overwrites_nothing_and_leaves_the_state() -> Result<()> {
    let home = TestHome::new()?;
    for directory in ["queue", "state", "audit"] {
        home.write(&format!("home/.bot-bottle/{directory}/one/file"), "x")?;
    }
    home.write("home/.bot-bottle/bottles/mine.md", "---\nenv: {A: theirs}\n---\n")?;
    home.write("home/.bottle/bottles/mine.md", "---\nenv: {A: mine}\n---\n")?;
    home.write("project/.bot-bottle/agents/helper.md", "Help.\n")?;
    says(&home, &["init", "--import"], "1 already existed and stay unchanged")?;
    let mine = std::fs::read_to_string(home.bottle_home().join("bottles/mine.md"))?;
    ensure!(mine.contains("mine"), "{mine}");
    for directory in ["queue", "state", "audit"] {
        ensure!(!home.bottle_home().join(directory).join("one").exists(), "{directory} was copied");
    }
    let listed = transcript(&home, &["list", "agents"])?;
    ensure!(!listed.contains("helper"), "{listed}");
    home.write("project/.bottle/agents/helper.md", "Help.\n")?;
    says(&home, &["list", "agents"], "helper")
}

#[test]
fn the_import_finds_the_home_that_the_variable_names() -> Result<()> {
    let mut home = TestHome::new()?;
    home.write("home/elsewhere/bottles/mine.md", "---\nenv: {A: b}\n---\n")?;
    let elsewhere = home.home().join("elsewhere");
    let text = transcripts(&home, &[&["init", "--import"]])?;
    home.env("BOT_BOTTLE_HOME", elsewhere).env("BOT_BOTTLE_DEBUG", "1");
    let more = transcripts(&home, &[&["init", "--import", "nowhere"], &["init", "--import"], &["list"]])?;
    snapshot!(format!("{text}\n{more}"));
    Ok(())
}

#[test]
fn a_variable_of_bot_bottle_prevents_the_start() -> Result<()> {
    let mut home = home()?;
    for (value, starts) in [("1", false), ("0", true)] {
        home.env("BOT_BOTTLE_DRY_RUN", value);
        let started = run(&home, &["start", "hi", "--yes"])?.expect_code(0);
        assert_eq!(started.stdout == "hi\n", starts, "{value}: {}", started.stdout);
        assert_eq!(home.bottle_home().join("state").exists(), starts, "{value}");
        let read = "BOT_BOTTLE_DRY_RUN is read as BOTTLE_DRY_RUN; rename it";
        ensure!(started.stderr.contains(read), "{value}: {}", started.stderr);
        let note = "BOTTLE_DRY_RUN is set: this command starts nothing";
        assert_eq!(started.stderr.contains(note), !starts, "{value}: {}", started.stderr);
        ensure!(starts || started.stdout.contains("command\n  echo hi on pipes"), "{}", started.stdout);
    }
    Ok(())
}

#[test]
fn the_name_of_a_variable_in_bot_bottle_selects_the_backend() -> Result<()> {
    let mut home = home()?;
    home.bottle("hi", "---\nagent_provider: {template: command, command: [echo, hi]}\n---\n")?;
    home.env("BOT_BOTTLE_BACKEND", "fake");
    let old = transcripts(&home, &[&["start", "hi", "--yes"], &["start", "hi", "--yes", "-q"]])?;
    home.env("BOTTLE_BACKEND", "nothing");
    snapshot!(format!("{old}\n{}", transcript(&home, &["start", "hi", "--yes"])?));
    Ok(())
}
