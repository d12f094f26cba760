//! Property tests of the rules for merging, with generated bottle manifests. The submodules contain tests
//! with complete files.

mod choices;
pub(super) mod directories;
mod explain;
mod refusals;
mod weakening;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::error::ResolveError;
use super::fold::fold;
use super::linearise::{Layer, RequestedBy, ancestors, linearise};
use crate::{BottleLayer, Place, Source};
use bottle_policy::names::Name;

/// Bottle manifests as text, by name.
type Files = BTreeMap<String, String>;

fn name(text: &str) -> Name {
    text.parse().expect("name")
}

fn line(files: &Files, picks: &[&str]) -> Result<Vec<Layer>, ResolveError> {
    let picks: Vec<_> = picks.iter().map(|pick| (name(pick), RequestedBy::User)).collect();
    linearise(&picks, &mut |name, requested_by| {
        let Some(text) = files.get(name.as_str()) else { return Err(requested_by.unknown(name, &[])) };
        let source = Source { place: Place::Home, path: Path::new(name.as_str()).into() };
        Ok(BottleLayer::parse(name.clone(), source, text)?)
    })
}

fn names(layers: &[Layer]) -> Vec<String> {
    layers.iter().map(|layer| layer.body.name.to_string()).collect()
}

/// Returns the result of merging these bottles, without the origins of the values. Returns `None` if routes conflict.
fn meaning(files: &Files, picks: &[&str]) -> Option<serde_json::Value> {
    let layers = line(files, picks).expect("a line");
    let folded = fold(&layers).ok()?;
    Some(without_origins(serde_json::to_value(&folded).expect("JSON")))
}

fn without_origins(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(mut map) if map.len() == 2 && map.contains_key("origin") => {
            without_origins(map.remove("value").unwrap_or_default())
        }
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, without_origins(value))).collect(),
        Value::Array(list) => list.into_iter().map(without_origins).collect(),
        other => other,
    }
}

fn bottle(extends: &[&str], body: &str) -> String {
    format!("---\nextends: [{}]\n{body}---\n", extends.join(", "))
}

/// Generates the keys of a bottle manifest. The repositories are always complete, so that only conflicting routes can
/// make a merge fail.
fn body() -> impl Strategy<Value = String> {
    let word = || select(vec!["one", "two", "three"]);
    let env = subsequence(vec!["A", "B", "C"], 0..=3)
        .prop_flat_map(move |keys| vec(word(), keys.len()).prop_map(move |values| pairs(&keys, &values)))
        .prop_map(|pairs| format!("env: {{{pairs}}}\n"));
    let routes = subsequence(vec!["a.example.com", "b.example.com", "c.example.com"], 0..=3)
        .prop_flat_map(|hosts| (Just(hosts), prop_oneof![9 => Just(""), 1 => Just(", private: true")]))
        .prop_map(|(hosts, rest)| {
            hosts.iter().map(|host| format!("{{host: {host}{rest}}}")).collect::<Vec<_>>().join(", ")
        });
    let egress =
        (routes, 0..3u8).prop_map(|(routes, log)| format!("egress: {{log: {log}, routes: [{routes}]}}\n"));
    let repos = (subsequence(vec!["r1", "r2"], 0..=2), word(), any::<bool>()).prop_map(|(repos, word, stale)| {
        let repo = format!("{{url: 'git@git.example.com:{word}.git', key: {{provider: static, path: /{word}}}, stale_ok: {stale}}}");
        let entries: Vec<_> = repos.iter().map(|name| format!("{name}: {repo}")).collect();
        format!("repos: {{{}}}", entries.join(", "))
    });
    let user = (word(), any::<bool>())
        .prop_map(|(word, empty)| format!("user: {{name: '{}'}}", if empty { "" } else { word }));
    let gate = prop_oneof![repos, user].prop_map(|part| format!("git-gate: {{{part}}}\n"));
    let provider = prop_oneof![
        word().prop_map(|word| format!("agent_provider: {{template: command, command: [{word}]}}\n")),
        Just("agent_provider: {template: codex, auth_token: KEY}\n".to_owned()),
    ];
    let rest = prop_oneof![
        any::<bool>().prop_map(|on| format!("supervise: {on}\n")),
        word().prop_map(|word| format!("backend: {word}\n")),
        (1..9u8).prop_map(|n| format!("resources: {{pids: {n}}}\n")),
        word().prop_map(|word| format!("mcp: {{agents: [{word}]}}\n")),
        Just("mcp: {}\n".to_owned()),
        (1..9u8).prop_map(|n| format!("resources: {{memory: {n}GiB, nested: true}}\n")),
    ];
    let maybe = |part: BoxedStrategy<String>| prop_oneof![Just(String::new()), part];
    [env.boxed(), egress.boxed(), gate.boxed(), provider.boxed(), rest.boxed()]
        .map(|part| maybe(part).boxed())
        .to_vec()
        .prop_map(|parts| parts.concat())
}

fn pairs(keys: &[&str], values: &[&str]) -> String {
    keys.iter().zip(values).map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join(", ")
}

fn files(entries: &[(&str, String)]) -> Files {
    entries.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect()
}

/// Whether the text contains `repos: {}`. The effect of `repos: {}` depends on the graph of `extends`, not only on the
/// order of merging.
fn removes(body: &str) -> bool {
    body.contains("repos: {}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Merging is associative, (a · b) · c = a · (b · c): for the parents of one file, for several files, and for
    /// bottles that are selected separately.
    #[test]
    fn merging_is_associative(a in body(), b in body(), c in body()) {
        prop_assume!(![&a, &b, &c].iter().any(|body| removes(body)));
        let files = files(&[
            ("a", bottle(&[], &a)), ("b", bottle(&[], &b)), ("c", bottle(&[], &c)),
            ("ab", bottle(&["a", "b"], "")), ("bc", bottle(&["b", "c"], "")), ("abc", bottle(&["ab", "c"], "")),
        ]);
        let picked = meaning(&files, &["a", "b", "c"]);
        prop_assert_eq!(&meaning(&files, &["ab", "c"]), &picked);
        prop_assert_eq!(&meaning(&files, &["a", "bc"]), &picked);
        prop_assert_eq!(&meaning(&files, &["abc"]), &picked);
    }

    /// Merging is idempotent, a · a = a: for the same file, and for two files with the same content.
    #[test]
    fn merging_is_idempotent(a in body(), b in body()) {
        let files = files(&[("a", bottle(&[], &a)), ("again", bottle(&[], &a)), ("b", bottle(&[], &b))]);
        prop_assert_eq!(meaning(&files, &["a", "a"]), meaning(&files, &["a"]));
        prop_assert_eq!(meaning(&files, &["a", "again"]), meaning(&files, &["a"]));
        prop_assert_eq!(meaning(&files, &["a", "b", "a"]), meaning(&files, &["a", "b"]));
    }

    /// A shared ancestor is merged once, at its earliest position.
    #[test]
    fn a_shared_ancestor_cannot_override_layers_in_between(base in body(), left in body(), right in body()) {
        prop_assume!(!removes(&left) && !removes(&right));
        let files = files(&[
            ("base", bottle(&[], &base)),
            ("left", bottle(&["base"], &left)), ("right", bottle(&["base"], &right)),
            ("left-alone", bottle(&[], &left)), ("right-alone", bottle(&[], &right)),
        ]);
        prop_assert_eq!(meaning(&files, &["left", "right"]), meaning(&files, &["base", "left-alone", "right-alone"]));
    }

    /// An empty manifest has no effect at any position.
    #[test]
    fn an_empty_bottle_is_neutral(a in body(), b in body()) {
        let files = files(&[("a", bottle(&[], &a)), ("b", bottle(&[], &b)), ("empty", bottle(&[], ""))]);
        let plain = meaning(&files, &["a", "b"]);
        for picks in [["empty", "a", "b"], ["a", "empty", "b"], ["a", "b", "empty"]] {
            prop_assert_eq!(&meaning(&files, &picks), &plain);
        }
    }

    /// For any graph, either the ancestors of each manifest come before it and each manifest occurs once, or
    /// a cycle is reported.
    #[test]
    fn linearises_any_graph_without_a_cycle(edges in vec((0..8usize, 0..8usize), 0..16), picks in vec(0..8usize, 1..4)) {
        let label = |index: usize| format!("b{index}");
        let parents = |index: usize| -> Vec<usize> {
            edges.iter().filter(|(from, _)| *from == index).map(|(_, to)| *to).collect()
        };
        let files: Files = (0..8).map(|index| {
            let extends: Vec<String> = parents(index).into_iter().map(label).collect();
            (label(index), bottle(&extends.iter().map(String::as_str).collect::<Vec<_>>(), ""))
        }).collect();
        let picked: Vec<String> = picks.iter().copied().map(label).collect();
        let reached = picks.iter().fold(BTreeSet::new(), |all, pick| &all | &reach(*pick, &parents));
        let cyclic = reached.iter().any(|index| parents(*index).iter().any(|parent| reach(*parent, &parents).contains(index)));
        match line(&files, &picked.iter().map(String::as_str).collect::<Vec<_>>()) {
            Err(error) => prop_assert!(cyclic, "{}", error),
            Ok(layers) => {
                prop_assert!(!cyclic);
                let order = names(&layers);
                prop_assert_eq!(order.iter().cloned().collect::<BTreeSet<_>>(), reached.iter().copied().map(label).collect());
                prop_assert_eq!(order.len(), reached.len());
                for (place, layer) in layers.iter().enumerate() {
                    for ancestor in ancestors(&layers, layer) {
                        prop_assert!(order[..place].contains(&ancestor.to_string()));
                    }
                }
            }
        }
    }
}

/// Returns a node and all nodes that are reachable from it.
fn reach(from: usize, parents: &impl Fn(usize) -> Vec<usize>) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(index) = open.pop() {
        if seen.insert(index) {
            open.extend(parents(index));
        }
    }
    seen
}

#[test]
fn orders_parents_left_to_right_and_ancestors_earliest() {
    let files = files(&[
        ("base", bottle(&[], "")),
        ("left", bottle(&["base"], "")),
        ("right", bottle(&["other", "base"], "")),
        ("other", bottle(&[], "")),
        ("child", bottle(&["left", "right"], "")),
    ]);
    let layers = line(&files, &["other", "child"]).expect("a line");
    assert_eq!(names(&layers), ["other", "base", "left", "right", "child"]);
    let via = layers[1].via.as_ref().expect("a chain");
    assert_eq!(via.names(), [&name("child"), &name("left")]);
}

#[test]
fn refuses_a_chain_above_the_limit() {
    let label = |index: usize| format!("b{index}");
    let mut files: Files = (0..1_999).map(|index| (label(index), bottle(&[&label(index + 1)], ""))).collect();
    files.insert(label(1_999), bottle(&[], ""));
    assert_eq!(line(&files, &["b1100"]).expect("a line").len(), 900);
    let error = line(&files, &["b0"]).expect_err("too long");
    assert!(error.message().contains("more than 1000 bottles"), "{error}");
}
