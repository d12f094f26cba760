//! Detects GitLab's quick actions: text that makes a forge change a repository.
//!
//! GitLab executes lines such as `/merge` in comments and in the descriptions of issues and merge requests,
//! with the author's rights. Without this check, a comment on a gated forge could merge a branch.

use serde_json::Value;

use super::git::decoded;

/// The quick actions that change branches or the target of a merge request.
const WORDS: [&str; 4] = ["create_merge_request", "merge", "rebase", "target_branch"];

/// The deepest nesting at which a JSON document is searched. Strings at a deeper level are searched only as plain text,
/// with their escapes.
const DEPTH: usize = 16;

/// Searches a request for quick actions that change a repository, and returns the first. The function reads
/// the query as a form, and the body as a form, as JSON and as plain text. A quick action is a word after `/`
/// at the beginning of a line.
#[must_use]
pub fn quick_action(query: Option<&str>, body: &[u8]) -> Option<&'static str> {
    let body = String::from_utf8_lossy(body);
    let is_json = body.trim_start().starts_with(['{', '[']);
    let document = is_json.then(|| serde_json::from_str::<Value>(&body).ok()).flatten();
    let in_document = document.and_then(|document| in_value(&document, DEPTH));
    in_document.or_else(|| in_lines(&body)).or_else(|| in_form(&body)).or_else(|| in_form(query?))
}

fn in_value(value: &Value, depth: usize) -> Option<&'static str> {
    let deeper = depth.checked_sub(1)?;
    match value {
        Value::String(text) => in_lines(text),
        Value::Array(values) => values.iter().find_map(|value| in_value(value, deeper)),
        Value::Object(fields) => fields.values().find_map(|value| in_value(value, deeper)),
        _ => None,
    }
}

fn in_form(text: &str) -> Option<&'static str> {
    let values = text.split(['&', ';']).filter_map(|pair| pair.split_once('='));
    values.map(|(_, value)| decoded(&value.replace('+', " "))).find_map(|value| in_lines(&value))
}

fn in_lines(text: &str) -> Option<&'static str> {
    text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).find_map(|line| {
        let line = line.trim_start_matches(|c: char| c.is_whitespace() || c.is_control() || c == '\u{feff}');
        let line = line.strip_prefix('/')?;
        WORDS.into_iter().find(|word| {
            let begins = line.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
            begins
                && !line[word.len()..]
                    .starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '-'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_quick_actions_and_not_mentions_of_them() {
        for (query, body, word) in [
            ("", r#"{"body": "/merge"}"#, Some("merge")),
            ("", r#"{"body": "good\n  /MERGE \n"}"#, Some("merge")),
            ("", r#"{"note": {"body": "x\r\n\u002fmerge"}}"#, Some("merge")),
            ("", r#"[{"a": ["\/rebase"]}]"#, Some("rebase")),
            ("", "body=good%0A%2Fmerge", Some("merge")),
            ("", "a=1&body=%2Ftarget_branch+main", Some("target_branch")),
            ("body=%2fmerge", "", Some("merge")),
            ("", "--x\r\nContent-Disposition: form-data; name=body\r\n\r\n/merge\r\n--x--", Some("merge")),
            ("", r#"{"description": "/create_merge_request x"}"#, Some("create_merge_request")),
            ("", r#"{"body": "say /merge to merge it"}"#, None),
            ("", r#"{"body": "/merged and /merge_requests"}"#, None),
            ("", r#"{"body": "/merge/x is a path"}"#, None),
            ("", r#"{"body": "/assign @me\n/label ~bug"}"#, None),
            ("page=2", "", None),
            ("", "{", None),
        ] {
            assert_eq!(quick_action(Some(query), body.as_bytes()), word, "{query} {body}");
        }
    }
}
