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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outer {
    list: Option<Spanned<Vec<Spanned<Item>>>>,
    number: Option<Spanned<u16>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    value: Spanned<String>,
    on: Option<bool>,
}

fn read(text: &str) -> Result<Outer, YamlError> {
    from_str(text)
}

#[test]
fn every_value_has_its_position() {
    let outer = read("number: 7\nlist:\n  - value: a\n  - {value: b, on: true}\n").expect("outer");
    let list = outer.list.expect("list");
    assert_eq!(list.at, Position { line: 3, column: 3 });
    let places: Vec<_> = list.value.iter().map(|item| (item.at, item.value.value.at)).collect();
    let at = |line, column| Position { line, column };
    assert_eq!(places, [(at(3, 5), at(3, 12)), (at(4, 5), at(4, 13))]);
    assert_eq!(list.value[1].value.on, Some(true));
    assert_eq!(outer.number.map(|n| n.value), Some(7));
}

#[test]
fn errors_name_path_position_and_type() {
    for (text, at, message) in [
        ("list: 5", "1:7", "`list` must be a list, not a number"),
        ("list:", "1:5", "`list` has no value; a list is needed"),
        ("number: '7'", "1:9", "`number` must be a whole number, not a string"),
        ("number: 7.5", "1:9", "`number` must be a whole number, not a number"),
        ("list:\n- value: true", "2:10", "`list[0].value` must be a string, not a boolean"),
        ("list:\n- value: a\n  on: yes", "3:7", "`list[0].on` must be true or false, not a string"),
        ("list:\n- on: true", "2:3", "`list[0]` lacks the key `value`"),
        ("list:\n- vlaue: a", "2:3", "unknown key `vlaue` in `list[0]`"),
        ("lists: []", "1:1", "unknown key `lists`"),
        ("[]", "1:1", "the frontmatter must be a map, not a list"),
    ] {
        let error = read(text).expect_err(text);
        let position = error.at.expect(text).to_string();
        assert_eq!((position.as_str(), error.message("the frontmatter").as_str()), (at, message), "{text:?}");
    }
    assert!(
        read("list:\n- vlaue: a")
            .expect_err("typo")
            .hint()
            .expect("hint")
            .starts_with("did you mean `value`?")
    );
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
