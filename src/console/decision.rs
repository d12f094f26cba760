//! Formats one line of the proxy's access log as columns of text.

use std::borrow::Cow;

use bottle_lib::access_log::{Shown, Tone};
use dialoguer::console::{Alignment, pad_str};
use jiff::Timestamp;

use super::output::{Styles, one_line};

/// The width of the longest verdict, in columns.
const VERDICT: usize = 8;
/// The width of the longest common method, in columns.
const METHOD: usize = 7;
/// The width of the column with host and path. A longer value shifts the rest of the line to the right.
const PLACE: usize = 44;

/// Formats a log line in columns. A line that cannot be parsed is only escaped, so that the output contains no escape
/// sequences from the log.
pub(crate) fn format_line(line: &str, styles: Styles) -> String {
    let Some(shown) = Shown::parse(line) else { return one_line(line) };
    match shown.time {
        Some(time) => format(shown, time, styles),
        None => styles.yellow(&format!("{} {}", shown.verdict, shown.explanation)),
    }
}

fn format(shown: Shown, time: Timestamp, styles: Styles) -> String {
    let Shown { verdict, method, place, explanation, tone, .. } = shown;
    let time = styles.dim(&time.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
    let verdict = padded(&verdict, VERDICT);
    let verdict = match tone {
        Tone::Bad => styles.red(&verdict),
        Tone::Notable => styles.yellow(&verdict),
        Tone::Good => styles.green(&verdict),
        Tone::Plain => verdict.into_owned(),
    };
    let place = if explanation.is_empty() { place.into() } else { padded(&place, PLACE) };
    let method = padded(&method, METHOD);
    format!("{time}  {verdict}  {method}  {place}  {explanation}").trim_end().to_owned()
}

fn padded(text: &str, columns: usize) -> Cow<'_, str> {
    pad_str(text, columns, Alignment::Left, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""event":"request","time":"2026-01-31T12:00:00.123Z","bottle":"b""#;

    fn line_of(rest: &str) -> String {
        format_line(&format!("{{{HEAD},{rest}}}"), Styles::PLAIN)
    }

    #[test]
    fn formats_every_verdict_in_columns() {
        let lines = [
            r#""id":"x","host":"blocked.example","port":443,"method":"GET","path":"/a","verdict":"denied","reason":"host-not-allowed","bytes":0,"milliseconds":0"#,
            r#""host":"api.example.com","port":443,"method":"POST","path":"/v1/messages","verdict":"denied","reason":"secret-found","found":"The request to `api.example.com` contains what looks like a secret: a GitHub token in the body.""#,
            r#""host":"api.example.com","port":80,"method":"POST","path":"/v1","verdict":"redacted","found":"a GitHub token in the header x-note""#,
            r#""host":"api.example.com","port":443,"method":"GET","path":"/a/path/that/is/longer/than/its/column/has/room/for","verdict":"passed","query":"q=1","status":200,"bytes":123456,"milliseconds":34"#,
            r#""host":"pinned.example","port":443,"method":"","path":"","verdict":"passed-unopened""#,
            r#""host":"page.example","port":443,"method":"GET","path":"/","verdict":"cut","found":"cut: a phrase in the answer","a-field-of-later":1"#,
        ];
        insta::assert_snapshot!(lines.map(line_of).join("\n"), @r"
        2026-01-31 12:00:00Z  denied    GET      blocked.example/a                             no route names the host
        2026-01-31 12:00:00Z  denied    POST     api.example.com/v1/messages                   The request to `api.example.com` contains what looks like a secret: a GitHub token in the body.
        2026-01-31 12:00:00Z  redacted  POST     api.example.com:80/v1                         a GitHub token in the header x-note
        2026-01-31 12:00:00Z  passed    GET      api.example.com/a/path/that/is/longer/than/its/column/has/room/for  200, 120.56 KiB in 34 ms
        2026-01-31 12:00:00Z  tunneled           pinned.example
        2026-01-31 12:00:00Z  cut       GET      page.example/                                 a phrase in the answer
        ");
        insta::assert_snapshot!(format_line(r#"{"event":"lost","lines":7}"#, Styles::PLAIN), @"lost 7 lines: the disk was slower than the proxy");
    }

    #[test]
    fn escapes_hostile_text_on_one_line() {
        let line = line_of(
            r#""host":"a\u001b[2Jb","port":443,"method":"G\nET","path":"/\u009b31m\r\nfake","verdict":"\u001b]0;x\u0007","found":"x\ny\tz""#,
        );
        assert!(line.starts_with("2026-01-31 12:00:00Z  "), "{line}");
        assert!(!line.contains(|character: char| character.is_control()), "{line:?}");
        for text in
            ["not json \u{1b}[2J\n", "{}", r#"{"event":"request"}"#, r#"{"event":"later","x":"\u{9b}"}"#]
        {
            let line = format_line(text, Styles::PLAIN);
            assert!(!line.contains(|character: char| character.is_control()), "{line:?}");
        }
    }
}
