//! Tests of paths, positions and types in decoder errors.

use serde::Deserialize;

use super::{Position, Spanned, YamlError, from_str};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Outer {
    list: Option<Spanned<Vec<Spanned<Inner>>>>,
    number: Option<Spanned<u16>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
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
