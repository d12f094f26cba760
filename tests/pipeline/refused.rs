//! Tests single manifests that must be refused with file, line, column and hint.

use std::path::Path;
use std::sync::Arc;

use bottle_manifest::{AgentManifest, BottleLayer, ManifestError, Place, Source};

use super::{directory, each, entries, expect};

fn refuse(case: &Path, parse: impl Fn(Source, &str) -> Option<ManifestError>) {
    let text = std::fs::read_to_string(case).expect("text");
    let file = case.file_name().expect("name");
    let source = Source { place: Place::Home, path: Arc::from(Path::new(file)) };
    let error = parse(source, &text).unwrap_or_else(|| panic!("{} was accepted", case.display()));
    assert!(error.position.is_some(), "no position: {error}");
    assert!(!error.to_string().contains("hunter2"), "the error contains a value: {error}");
    let name = case.file_stem().and_then(|stem| stem.to_str()).expect("name");
    expect(case.parent().expect("directory"), name, &error.to_string());
}

fn manifests(kind: &str) -> Vec<std::path::PathBuf> {
    let mut files = entries(&directory("refused").join(kind));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    files
}

#[test]
fn refuses_invalid_bottles() {
    each(&manifests("bottle"), |case| {
        refuse(case, |source, text| BottleLayer::parse("case".parse().expect("name"), source, text).err());
    });
}

#[test]
fn refuses_invalid_agents() {
    each(&manifests("agent"), |case| {
        refuse(case, |source, text| AgentManifest::parse("case".parse().expect("name"), source, text).err());
    });
}
