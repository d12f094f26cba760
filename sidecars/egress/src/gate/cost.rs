//! Computes the number of tokens that a request can use: its prompt, estimated from its length, and its output limit.
//!
//! The body is hostile, so it is searched and not parsed: the largest number that follows the key of an output limit
//! anywhere in the body counts. A body that hides its limit, for example with an escape in the key, reserves the default;
//! its response is still counted.

use bottle_contract::usage::Api;
use memchr::memmem::find_iter;

/// The largest number of tokens that a request can ask for.
const MAX_TOKENS: u64 = 1 << 53;

/// The most completions that one request can ask for. A larger number is no plausible request.
const MAX_COMPLETIONS: u64 = 128;

/// The longest name of a model, in bytes.
const MAX_MODEL: usize = 128;

/// The number of bytes of text that a byte of a body stands for, if the body cannot be decoded.
const EXPANSION: u64 = 4;

/// What is known about a request body before it is sent.
pub(crate) enum RequestBodyText {
    /// The decoded body.
    Text(Vec<u8>),
    /// The number of bytes of a body that is too long to be searched, or that the route does not scan.
    Length {
        bytes: u64,
        /// Whether the body has a content coding.
        encoded: bool,
    },
    /// A body that is not read yet and has no announced length.
    Unknown,
}

impl RequestBodyText {
    /// The decoded body, if it is known.
    pub(crate) fn text(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Length { .. } | Self::Unknown => &[],
        }
    }
}

/// The tokens that a request can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The model of the request, if the body names one.
    pub(crate) model: Option<String>,
    /// The length of the decoded body.
    pub(crate) bytes: u64,
    /// The tokens of the prompt: estimated, or as the provider counts them.
    pub(crate) prompt: u64,
    /// The output limit.
    pub(crate) output: u64,
}

impl Cost {
    /// The tokens of prompt and response together.
    pub(crate) fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.output).min(MAX_TOKENS)
    }

    /// Returns `None` if the length of the body is unknown. A request without an output limit has `default_output`.
    /// `estimate` estimates the tokens of a number of bytes.
    pub(super) fn of(
        api: Api,
        body: &RequestBodyText,
        default_output: u64,
        estimate: impl FnOnce(Option<&str>, u64) -> u64,
    ) -> Option<Self> {
        let bytes = match body {
            RequestBodyText::Text(text) => text.len() as u64,
            RequestBodyText::Length { bytes, encoded: false } => *bytes,
            RequestBodyText::Length { bytes, encoded: true } => bytes.saturating_mul(EXPANSION),
            RequestBodyText::Unknown => return None,
        };
        let text = body.text();
        let model = model(text);
        let prompt = estimate(model.as_deref(), bytes);
        Some(Self { model, bytes, prompt, output: output(api, text, default_output) })
    }
}

/// The most tokens that the response can have.
fn output(api: Api, text: &[u8], default: u64) -> u64 {
    let keys: &[&str] = match api {
        Api::Messages => &["\"max_tokens\""],
        Api::ChatCompletions => &["\"max_completion_tokens\"", "\"max_tokens\""],
        Api::Responses => &["\"max_output_tokens\""],
    };
    let limit = keys.iter().flat_map(|key| numbers(text, key)).max().unwrap_or(default);
    let completions = match api {
        Api::ChatCompletions => numbers(text, "\"n\"").max().unwrap_or(1).clamp(1, MAX_COMPLETIONS),
        Api::Messages | Api::Responses => 1,
    };
    limit.saturating_mul(completions)
}

/// The whole numbers that follow a key, anywhere in the text.
fn numbers<'t>(text: &'t [u8], key: &'t str) -> impl Iterator<Item = u64> + 't {
    values(text, key).filter_map(|value| {
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&value[..digits]).ok().filter(|digits| !digits.is_empty())?;
        // A number beyond 64 bits asks for more than any budget has.
        Some(number.parse().unwrap_or(MAX_TOKENS))
    })
}

/// What follows the colon after each occurrence of a key.
pub(super) fn values<'t>(text: &'t [u8], key: &'t str) -> impl Iterator<Item = &'t [u8]> + 't {
    find_iter(text, key.as_bytes())
        .filter_map(move |at| text[at + key.len()..].trim_ascii_start().strip_prefix(b":"))
        .map(<[u8]>::trim_ascii_start)
}

/// The first model name in the text.
fn model(text: &[u8]) -> Option<String> {
    let name = values(text, "\"model\"").find_map(|value| value.strip_prefix(b"\""))?;
    let name = &name[..name.len().min(MAX_MODEL)];
    let end = memchr::memchr(b'"', name)?;
    let plain = name[..end].iter().all(u8::is_ascii_graphic);
    plain.then(|| String::from_utf8_lossy(&name[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT_OUTPUT: u64 = 16_000;

    fn cost(api: Api, text: &str) -> (Option<String>, u64) {
        let body = RequestBodyText::Text(text.as_bytes().to_vec());
        let cost = Cost::of(api, &body, DEFAULT_OUTPUT, |_, _| 0).expect("a cost");
        assert_eq!(cost.bytes, text.len() as u64);
        (cost.model.clone(), cost.tokens())
    }

    #[test]
    fn reads_the_output_limit_of_each_api() {
        for (api, text, tokens) in [
            (Api::Messages, r#"{"max_tokens":32000,"messages":[]}"#, 32_000),
            (Api::Messages, "{\"max_tokens\" :\n 7 }", 7),
            (Api::Messages, r#"{"messages":[]}"#, DEFAULT_OUTPUT),
            (Api::Messages, r#"{"max_tokens":1,"max_tokens":9}"#, 9),
            (Api::Messages, r#"{"max_tokens":99999999999999999999999}"#, MAX_TOKENS),
            (Api::Messages, r#"{"max_tokens":"5"}"#, DEFAULT_OUTPUT),
            (Api::Messages, r#"{"messages":["\"max_tokens\":77"]}"#, DEFAULT_OUTPUT),
            (Api::ChatCompletions, r#"{"max_completion_tokens":5,"n":3}"#, 15),
            (Api::ChatCompletions, r#"{"max_tokens":5,"n":0}"#, 5),
            (Api::ChatCompletions, r#"{"max_tokens":5,"n":1000000}"#, 5 * MAX_COMPLETIONS),
            (Api::Responses, r#"{"max_output_tokens":5,"max_tokens":50}"#, 5),
            (Api::Responses, "", DEFAULT_OUTPUT),
        ] {
            assert_eq!(cost(api, text).1, tokens, "{text}");
        }
    }

    #[test]
    fn reads_the_model() {
        for (text, model) in [
            (r#"{"model":"claude-opus-4-8","x":1}"#, Some("claude-opus-4-8")),
            (r#"{"model" : "m"}"#, Some("m")),
            (r#"{"model":5}"#, None),
            (r#"{"model":"a\nb"}"#, Some("a\\nb")),
            ("{\"model\":\"\u{e9}\"}", None),
            (r#"{"model":"unfinished"#, None),
        ] {
            assert_eq!(cost(Api::Messages, text).0.as_deref(), model, "{text}");
        }
        assert_eq!(cost(Api::Messages, &format!(r#"{{"model":"{}"}}"#, "x".repeat(500))).0, None);
    }

    #[test]
    fn an_unread_body_costs_by_its_length() {
        let cost =
            |body| Cost::of(Api::Messages, &body, DEFAULT_OUTPUT, |_, bytes| bytes).map(|cost| cost.tokens());
        let length = |encoded| RequestBodyText::Length { bytes: 10, encoded };
        assert_eq!(cost(length(false)), Some(10 + DEFAULT_OUTPUT));
        assert_eq!(cost(length(true)), Some(40 + DEFAULT_OUTPUT));
        assert_eq!(cost(RequestBodyText::Unknown), None);
    }
}
