//! Tests that every shipped manifest works without `init`. Snapshots contain the resolved manifests.

use bottle_manifest::resolve::{Selection, explain, resolve, weakening_settings};
use bottle_manifest::{Homes, Kind, Manifests};

/// Returns a home in which only the shipped manifests exist, and its manifests.
fn shipped_only() -> (tempfile::TempDir, Manifests) {
    let empty = tempfile::tempdir().expect("temporary directory");
    let homes = Homes {
        bottle_home: empty.path().join("home/.bottle"),
        user_home: empty.path().join("home"),
        cwd: empty.path().join("work"),
    };
    (empty, Manifests::new(homes))
}

#[test]
fn every_agent_resolves_with_its_default_bottle() {
    let (_empty, manifests) = shipped_only();
    for entry in manifests.list(Kind::Agent).entries {
        let selection = Selection { agent: entry.name.clone(), bottles: Vec::new() };
        let resolved = resolve(&selection, &manifests).unwrap_or_else(|error| panic!("{error}"));
        assert!(weakening_settings(&resolved.manifest).is_empty(), "{}", entry.name);
        insta::assert_snapshot!(format!("agent-{}", entry.name), explain(&resolved.manifest));
    }
}

/// A denial names the shipped manifest that has a route for the host.
#[test]
fn every_known_host_is_opened_by_its_manifest() {
    let (_empty, manifests) = shipped_only();
    for (host, manifest) in bottle_policy::known_hosts::opened() {
        let bottles = vec![manifest.parse().expect("name")];
        let selection = Selection { agent: "shell".parse().expect("name"), bottles };
        let resolved = resolve(&selection, &manifests).unwrap_or_else(|error| panic!("{error}"));
        let routes = &resolved.manifest.egress.routes;
        assert!(routes.iter().any(|route| route.value.host.covers(host)), "{manifest} does not open {host}");
    }
}

#[test]
fn every_bottle_resolves_with_the_shell_agent() {
    let (_empty, manifests) = shipped_only();
    for entry in manifests.list(Kind::Bottle).entries {
        let selection =
            Selection { agent: "shell".parse().expect("name"), bottles: vec![entry.name.clone()] };
        let resolved = resolve(&selection, &manifests).unwrap_or_else(|error| panic!("{error}"));
        insta::assert_snapshot!(format!("bottle-{}", entry.name), explain(&resolved.manifest));
    }
}
