//! What the pages tell a user to write can be used as it stands, so that they cannot fall behind the program.
//!
//! A fence says what its text is: `bottle` or `agent`, with a name where a later example of the page needs it, or
//! `settings`. Examples of a page share a home, in their order. Lines of `sh` fences are commands.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bottle::host::{Host, Settings};
use bottle::manifest::{Homes, Manifests};
use bottle::resolve::{Selection, resolve};
use bottle_contract::names::Name;

use super::{each, entries};

/// A fenced text of a page.
struct Fence<'a> {
    /// What stands behind the opening marks.
    words: Vec<&'a str>,
    text: String,
}

#[test]
fn every_manifest_of_the_pages_resolves() {
    each(&pages(), manifests_of);
}

#[test]
fn every_command_of_the_pages_has_the_flags_it_is_given() {
    // The README's commands have words in capitals where a user fills in a name.
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
    let home = tempfile::tempdir().expect("temporary folder");
    let host = host(home.path());
    for folder in ["agents", "bottles", "skills/review"] {
        fs::create_dir_all(host.home.join(folder)).expect("folder");
    }
    for fence in fences(&text) {
        let said = format!("{}: {}\n{}", page.display(), fence.words.join(" "), fence.text);
        match fence.words.get(1) {
            Some(&kind @ ("agent" | "bottle")) => resolves(&host, kind, &fence, &said),
            Some(&"settings") => {
                fs::write(host.home.join("settings.yml"), &fence.text).expect("write");
                Settings::load(&host).unwrap_or_else(|error| panic!("{said}{error}"));
            }
            _ => assert!(!fence.text.starts_with("---"), "neither `agent` nor `bottle`: {said}"),
        }
    }
}

fn resolves(host: &Host, kind: &str, fence: &Fence<'_>, said: &str) {
    let written = fence.words.get(2).copied().unwrap_or("example");
    fs::write(host.home.join(format!("{kind}s/{written}.md")), &fence.text).expect("write");
    let named: Name = written.parse().expect("name");
    let selection = match kind {
        "agent" => Selection { agent: named, bottles: Vec::new() },
        _ => Selection { agent: "shell".parse().expect("name"), bottles: vec![named] },
    };
    if let Err(error) = resolve(&selection, &Manifests::new(Homes::from(host))) {
        panic!("{said}{error}");
    }
}

fn commands_of(page: &Path) {
    let text = fs::read_to_string(page).expect("text");
    let home = tempfile::tempdir().expect("temporary folder");
    for fence in fences(&text).filter(|fence| fence.words == ["sh"]) {
        for line in fence.text.lines().filter(|line| line.starts_with("bottle ")) {
            let words = shlex::split(line).expect("words");
            let own = words.iter().skip(1).take_while(|word| *word != "--");
            // What stands before it is read first, and refused when there is no such flag or value.
            let run = Command::new(env!("CARGO_BIN_EXE_bottle"))
                .args(own)
                .arg("--help")
                .env("BOTTLE_HOME", home.path())
                .output()
                .expect("run");
            let refused = String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success(), "{}: {line}\n{refused}", page.display());
        }
    }
}

/// The fenced texts of a page, in their order.
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
