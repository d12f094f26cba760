use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Sample {
    name: Option<Spanned<String>>,
    on: Option<bool>,
    ports: Option<Vec<u16>>,
    inner: Option<Spanned<Inner>>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Inner {
    word: Spanned<String>,
}

#[test]
fn type_errors_have_a_correction_and_a_position() {
    for (text, at, part) in [
        ("on: yes", "1:5", "must be true or false"),
        ("name: 5", "1:7", "quotes"),
        ("name: true", "1:7", "quotes"),
        ("name:", "1:5", "`name` has no value"),
        ("name: [a]", "1:7", "a string"),
        ("ports: ['443']", "1:9", "without quotes"),
        ("ports: [443.0]", "1:9", "whole number"),
        ("ports: [http]", "1:9", "whole number"),
        ("ports: [-1]", "1:9", "`ports[0]` is out of range"),
        ("ports: [70000]", "1:9", "`ports[0]` is out of range"),
        ("ports: [~]", "1:9", "whole number"),
        ("ports:", "1:6", "`ports` has no value"),
        ("ports: ~", "1:8", "`ports` has no value"),
        ("ports: 443", "1:8", "a list"),
        ("on: 'true'", "1:5", "without quotes"),
        ("inner:", "1:6", "`inner` has no value"),
        ("inner: {}", "1:8", "`inner` lacks the key `word`"),
        ("on: true\nports: []\non: false", "3:1", "appears twice"),
        ("on: true\nnmae: x", "2:1", "accepted here: `name`, `on`, `ports` and `inner`"),
        ("inner: {word: a, wrod: b}", "1:18", "unknown key `wrod` in `inner`; did you mean `word`?"),
        ("on: true\n---\non: false", "3:1", "second document"),
        ("name: !x y", "1:10", "tags"),
        ("[", "", ""),
    ] {
        let error = from_str::<Sample>(text).expect_err(text);
        let seen = error.at.map(|at| at.to_string()).unwrap_or_default();
        assert!(at.is_empty() || seen == at, "{text:?}: {seen} {error}");
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
}

#[test]
fn nested_values_have_positions() {
    let sample: Sample = from_str("on: true\ninner:\n  word: hello\n").expect("sample");
    let inner = sample.inner.expect("inner");
    assert_eq!(inner.at, Position { line: 3, column: 3 });
    assert_eq!(inner.value.word.at, Position { line: 3, column: 9 });
}

#[test]
fn rejects_exponential_aliases() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let uses = vec![format!("*a{}", level - 1); 10].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{uses}]\n"));
    }
    let error = from_str::<serde_json::Value>(&bomb).expect_err("bomb");
    assert!(error.to_string().contains("expand"), "{error}");
    assert!(from_str::<serde_json::Value>(&"[".repeat(5_000)).is_err());
    assert!(from_str::<serde_json::Value>(&"a".repeat(MAX_DOCUMENT + 1)).is_err());
}

#[test]
fn errors_quote_no_values() {
    for text in ["ports: hunter2-hunter2", "on: hunter2-hunter2", "inner: hunter2-hunter2"] {
        let error = from_str::<Sample>(text).expect_err(text);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = from_str::<Sample>(&text);
    }

    #[test]
    fn any_string_round_trips(text in any::<String>()) {
        let written = to_string(&std::collections::BTreeMap::from([("name", &text)])).expect("written");
        let read: Sample = from_str(&written).expect("read");
        prop_assert_eq!(read.name.expect("name").value, text);
    }
}
