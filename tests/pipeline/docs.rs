//! Checks that the manifests and commands in the documentation work.
//!
//! The words after the opening marks of a fenced block declare its content: `bottle` or `agent`, with a name
//! if a later example of the page needs it, `settings` or `rates`. All examples of a page share one home. Lines of
//! `sh` blocks that begin with `bottle` are commands.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bottle_host::rates::Rates;
use bottle_host::{Host, Settings};
use bottle_manifest::resolve::{Selection, resolve};
use bottle_manifest::{Homes, Manifests};
use bottle_policy::names::Name;

use super::{each, entries};

/// A fenced block in a page.
struct Fence<'a> {
    /// The words after the opening marks: the language, and the declaration of the content.
    words: Vec<&'a str>,
    text: String,
}

#[test]
fn every_documented_manifest_resolves() {
    each(&pages(), manifests_of);
}

#[test]
fn every_documented_command_has_its_flags() {
    // The README is skipped, because its commands have words in capitals as placeholders.
    let mut pages = pages();
    pages.retain(|page| !page.ends_with("README.md"));
    each(&pages, commands_of);
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = entries(&root.join("docs"));
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(root.join("README.md"));
    pages
}

fn manifests_of(page: &Path) {
    let text = fs::read_to_string(page).expect("text");
    let home = tempfile::tempdir().expect("temporary directory");
    let host = host(home.path());
    for directory in ["agents", "bottles", "skills/review"] {
        fs::create_dir_all(host.home.join(directory)).expect("directory");
    }
    for fence in fences(&text) {
        let shown = format!("{}: {}\n{}", page.display(), fence.words.join(" "), fence.text);
        match fence.words.get(1) {
            Some(&kind @ ("agent" | "bottle")) => resolves(&host, kind, &fence, &shown),
            Some(&"settings") => {
                fs::write(host.home.join("settings.yml"), &fence.text).expect("write");
                Settings::load(&host).unwrap_or_else(|error| panic!("{shown}{error}"));
            }
            Some(&"rates") => {
                fs::write(host.home.join("rates.yml"), &fence.text).expect("write");
                Rates::load(&host).unwrap_or_else(|error| panic!("{shown}{error}"));
            }
            _ => assert!(!fence.text.starts_with("---"), "neither `agent` nor `bottle`: {shown}"),
        }
    }
}

fn resolves(host: &Host, kind: &str, fence: &Fence<'_>, shown: &str) {
    let written = fence.words.get(2).copied().unwrap_or("example");
    fs::write(host.home.join(format!("{kind}s/{written}.md")), &fence.text).expect("write");
    let named: Name = written.parse().expect("name");
    let selection = match kind {
        "agent" => Selection { agent: named, bottles: Vec::new() },
        _ => Selection { agent: "shell".parse().expect("name"), bottles: vec![named] },
    };
    if let Err(error) = resolve(&selection, &Manifests::new(Homes::from(host))) {
        panic!("{shown}{error}");
    }
}

fn commands_of(page: &Path) {
    let text = fs::read_to_string(page).expect("text");
    let home = tempfile::tempdir().expect("temporary directory");
    for fence in fences(&text).filter(|fence| fence.words == ["sh"]) {
        for line in fence.text.lines().filter(|line| line.starts_with("bottle ")) {
            let words = shlex::split(line).expect("words");
            let arguments = words.iter().skip(1).take_while(|word| *word != "--");
            // `bottle` parses the arguments before `--help` first, and refuses unknown flags or values.
            let run = Command::new(env!("CARGO_BIN_EXE_bottle"))
                .args(arguments)
                .arg("--help")
                .env("BOTTLE_HOME", home.path())
                .output()
                .expect("run");
            let refused = String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success(), "{}: {line}\n{refused}", page.display());
        }
    }
}

/// The fenced blocks of a page, in order.
fn fences(page: &str) -> impl Iterator<Item = Fence<'_>> {
    let mut lines = page.lines();
    std::iter::from_fn(move || {
        let words = lines.by_ref().find_map(|line| line.strip_prefix("```"))?.split_whitespace().collect();
        let text = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        Some(Fence { words, text })
    })
}

fn host(home: &Path) -> Host {
    Host {
        env: BTreeMap::new(),
        cwd: home.join("work"),
        home: home.join(".bottle"),
        user_home: home.to_owned(),
        runtime: home.join("run"),
        program: "/usr/bin/bottle".into(),
    }
}
