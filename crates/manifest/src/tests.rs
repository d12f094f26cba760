//! Property tests: for any input, a parser does not panic, and an error message does not contain a value that
//! could be a secret.

use std::path::Path;

use proptest::prelude::*;

use super::{AgentManifest, BottleLayer, ManifestError, Place, Source};

const BOTTLE: &str = include_str!("../../../tests/pipeline/cases/every-key/home/bottles/everything.md");
const AGENT: &str = include_str!("../../../tests/pipeline/cases/every-key/home/agents/coder.md");

fn bottle(text: &str) -> Result<BottleLayer, ManifestError> {
    BottleLayer::parse("case".parse().expect("name"), source(), text)
}

fn agent(text: &str) -> Result<AgentManifest, ManifestError> {
    AgentManifest::parse("case".parse().expect("name"), source(), text)
}

fn source() -> Source {
    Source { place: Place::Home, path: Path::new("case.md").into() }
}

/// Generates variants of `text` in which one part is replaced.
fn damaged(text: &'static str) -> impl Strategy<Value = String> {
    let pieces = "[-\\[\\]{}:,&*!|>'\"#%@`?~ \n\tab1é\u{feff}\u{0}]{0,6}";
    (0..text.len(), 0..12usize, pieces).prop_map(move |(start, length, piece)| {
        let kept = text.chars().take(start).chain(piece.chars());
        kept.chain(text.chars().skip(start + length)).collect()
    })
}

#[test]
fn accepts_the_undamaged_manifests() {
    bottle(BOTTLE).expect("bottle");
    agent(AGENT).expect("agent");
}

proptest! {
    #[test]
    fn reports_damage_with_its_position(bottle_text in damaged(BOTTLE), agent_text in damaged(AGENT)) {
        for error in [bottle(&bottle_text).err(), agent(&agent_text).err()].into_iter().flatten() {
            let position = error.position.expect("a position");
            prop_assert!(position.line >= 1 && position.column >= 1);
            prop_assert!(error.to_string().starts_with("case.md:"));
        }
    }

    #[test]
    fn parses_or_refuses_any_yaml(yaml in "([a-z_]{1,6}: |- |[\\[\\]{}&*!|>'\"#,]|[a-z0-9]{1,4}|\n|  ){0,40}") {
        let text = format!("---\n{yaml}\n---\n");
        let _ = (bottle(&text), agent(&text));
    }

    /// The error for a value of the wrong type or form does not contain the value.
    #[test]
    fn no_error_repeats_a_value(key in prop::sample::select(vec![
        "extends", "env", "agent_provider", "git-gate", "egress", "supervise", "resources", "budget",
    ]), quoted: bool) {
        let secret = if quoted { "'hunter2 Hunter2'" } else { "hunter2_Hunter2" };
        let error = bottle(&format!("---\n{key}: {secret}\n---\n")).expect_err("a wrong type");
        if key != "extends" {
            prop_assert!(!error.to_string().contains("unter2"), "{}", error);
        }
    }
}
