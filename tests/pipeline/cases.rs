//! Resolves the selection of each case twice, which must yield the same manifest, and compares the
//! explanation with its snapshot.

use std::fmt::Write;
use std::path::Path;

use bottle_manifest::resolve::{ResolveError, Resolved, Selection, explain, resolve, weakening_settings};
use bottle_manifest::{Homes, Manifests};
use bottle_text::yaml;

use super::{directory, each, entries, expect, runs};

#[test]
fn every_case_matches_its_snapshot() {
    each(&entries(&directory("cases")), run);
}

fn run(case: &Path) {
    let homes =
        Homes { bottle_home: case.join("home"), user_home: case.join("user"), cwd: case.join("work") };
    let manifests = Manifests::new(homes);
    let selection = selection(&std::fs::read_to_string(case.join("select.txt")).expect("select.txt"));
    let shown = match resolve(&selection, &manifests) {
        Ok(resolved) => {
            let again = resolve(&selection, &manifests).expect("the same");
            assert_eq!(bytes(&resolved), bytes(&again));
            show(&resolved) + &runs::shown(case, &resolved)
        }
        Err(error) => show_error(&error),
    };
    let shown = shown.replace(&case.display().to_string(), "[case]");
    expect(case, "expected", &shown);
}

fn selection(line: &str) -> Selection {
    let mut words = line.split_whitespace().filter(|word| *word != "--bottle");
    let agent = words.next().expect("an agent").parse().expect("a name");
    Selection { agent, bottles: words.map(|word| word.parse().expect("a name")).collect() }
}

fn bytes(resolved: &Resolved) -> Vec<u8> {
    serde_json::to_vec(&resolved.manifest).expect("JSON")
}

fn show(resolved: &Resolved) -> String {
    let mut text = explain(&resolved.manifest);
    yaml::from_str::<serde_json::Value>(&text).expect("the explanation is YAML");
    assert!(!text.contains("not-a-real-key"), "a key of pi's settings is displayed");
    writeln!(text, "---\nchoice: {:?}", resolved.choice).expect("text");
    if let Some(place) = resolved.agent_replaces {
        writeln!(text, "agent replaces: {place:?}").expect("text");
    }
    for weakness in weakening_settings(&resolved.manifest) {
        let sentence = weakness.sentence();
        writeln!(text, "weakening: {} {sentence}, at {}", weakness.host, weakness.origin).expect("text");
    }
    for warning in &resolved.warnings {
        writeln!(text, "warning: {warning}").expect("text");
    }
    text
}

fn show_error(error: &ResolveError) -> String {
    format!("error: {error}")
}
