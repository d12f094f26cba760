//! Formats the report of a finding as text.

use serde_json::Value;

/// The maximum nesting depth of a report. A value at a greater depth is shown as JSON on one line.
const DEEP: usize = 6;

/// Formats a JSON report with one line per field. No field is omitted, because an approval covers the whole report.
/// Text that is not a JSON object is returned unchanged.
pub fn report_text(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value @ Value::Object(_)) => {
            let mut lines = Vec::new();
            fields(&value, 0, "", &mut lines);
            lines.join("\n")
        }
        _ => text.to_owned(),
    }
}

/// Formats each field of `value` as `key: value`. Nested values are indented, and list entries start with a dash.
fn fields(value: &Value, depth: usize, dash: &str, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    let plain = |value: &Value| match value {
        Value::String(text) => text.replace('\n', "\\n"),
        other => other.to_string(),
    };
    match value {
        Value::Object(map) if depth < DEEP => {
            for (at, (key, value)) in map.iter().enumerate() {
                let begins = if at == 0 { dash } else { &"  "[..dash.len()] };
                match value {
                    Value::Array(list)
                        if list.iter().all(|entry| !entry.is_object() && !entry.is_array()) =>
                    {
                        let list: Vec<String> = list.iter().map(plain).collect();
                        lines.push(format!("{indent}{begins}{key}: {}", list.join(", ")));
                    }
                    Value::Object(_) | Value::Array(_) => {
                        lines.push(format!("{indent}{begins}{key}:"));
                        fields(value, depth + 1, "", lines);
                    }
                    value => lines.push(format!("{indent}{begins}{key}: {}", plain(value))),
                }
            }
        }
        Value::Array(list) if depth < DEEP => list.iter().for_each(|entry| fields(entry, depth, "- ", lines)),
        other => lines.push(format!("{indent}{dash}{}", plain(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_json_reports_and_keeps_other_text() {
        let text = r#"{"repository": "work", "refs": ["refs/heads/a", "b"], "findings":
            [{"rule": "r", "line": 3, "deep": {"x": null}}, {"rule": "two\nlines"}], "empty": []}"#;
        assert_eq!(
            report_text(text),
            "empty: \nfindings:\n  - deep:\n    x: null\n    line: 3\n    rule: r\n  - rule: two\\nlines\n\
             refs: refs/heads/a, b\nrepository: work"
        );
        for text in ["", "words", "[1]", "{\"half"] {
            assert_eq!(report_text(text), text);
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(50), "}".repeat(50));
        assert_eq!(report_text(&deep).lines().count(), DEEP + 1);
    }
}
