//! Renders the line of a manifest that has an error, without values that could be secrets.

/// The keys whose values are shown, because they name hosts, files of manifests or kinds.
const SHOWN: &[&str] = &[
    "host",
    "hosts",
    "ports",
    "methods",
    "method",
    "paths",
    "path",
    "type",
    "extends",
    "bottle",
    "skills",
    "template",
    "scheme",
    "fetch",
    "log",
    "supervise",
    "backend",
    "cutoff",
    "inspect",
    "private",
    "websocket",
];

/// The placeholder for a hidden value.
const HIDDEN: &str = "…";

/// The longest line that is shown, in characters.
const MAX_CHARS: usize = 120;

/// Returns a line (counted from 1) of the text, with possible secrets hidden. Returns `None` if the text has no line
/// with this number, or if no part of the line may be shown.
pub(super) fn excerpt(text: &str, line: u64) -> Option<String> {
    let index = usize::try_from(line).ok()?.checked_sub(1)?;
    let written = text.strip_prefix('\u{feff}').unwrap_or(text).lines().nth(index)?;
    let shown = shown(written);
    let hides_all = shown.trim_start_matches([' ', '→', '-']) == HIDDEN;
    (!hides_all).then(|| shown.chars().take(MAX_CHARS).collect())
}

/// Hides the value of a line, unless the key of the line is one of [`SHOWN`].
fn shown(line: &str) -> String {
    let line = line.replace('\t', "→");
    let content = line.trim_start_matches([' ', '→', '-']);
    let head = &line[..line.len() - content.len()];
    let Some((key, value)) = content.split_once(':') else {
        return if content.is_empty() || content == "---" { line } else { format!("{head}{HIDDEN}") };
    };
    let is_key = key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\''));
    // A value with `@` can be a URL with a password.
    let is_shown = SHOWN.contains(&key) && !value.contains(['{', '}', '@']) && !value.contains(": ");
    match (is_key, value.trim().is_empty() || is_shown) {
        (true, true) => line.trim_end().to_owned(),
        (true, false) => format!("{head}{key}: {HIDDEN}"),
        (false, _) => format!("{head}{HIDDEN}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_keys_and_known_values_only() {
        for (line, expected) in [
            ("egres:", "egres:"),
            ("    - host: pypi.ogr", "    - host: pypi.ogr"),
            ("    - host: https://a.example/v1", "    - host: https://a.example/v1"),
            ("    - host: https://me:hunter2@a.example", "    - host: …"),
            ("      methods: [GET, HEAD]", "      methods: [GET, HEAD]"),
            ("  TOKEN: hunter2", "  TOKEN: …"),
            ("\tA: hunter2", "→A: …"),
            ("env: {TOKEN: hunter2}", "env: …"),
            ("    - host: {a: hunter2}", "    - host: …"),
            ("    - host: a, token: hunter2", "    - host: …"),
            ("    - hunter2", "    - …"),
            ("{host: a, token: hunter2}", "…"),
            ("hunter2 and: more", "…"),
            ("---", "---"),
        ] {
            assert_eq!(shown(line), expected, "{line:?}");
        }
        assert_eq!(excerpt("---\nenv:\n", 2).as_deref(), Some("env:"));
        assert_eq!(excerpt("---\n- hunter2\n", 2), None);
        assert_eq!(excerpt("---\n", 9), None);
        assert_eq!(excerpt("---\n", 0), None);
    }
}
