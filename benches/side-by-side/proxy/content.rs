//! The JSON bodies of requests and responses. Each body has 1 KiB.

/// The length of each body.
pub(crate) const LENGTH: usize = 1024;

/// The kind of text in a body. The scanner decodes text that may be encoded, so its speed depends on this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// English text, in a request to a service that is not a model, and in its response. The proxy counts no tokens.
    Ordinary,
    /// English text, in a request to a model and in its response. For all kinds except [`Content::Ordinary`], the proxy
    /// counts tokens.
    Prose,
    /// Source code with JSON escapes.
    Code,
    /// Base64 text, as of an image or another file.
    Base64,
    /// One letter, repeated.
    Run,
}

impl Content {
    pub(crate) const ALL: [Self; 5] = [Self::Ordinary, Self::Prose, Self::Code, Self::Base64, Self::Run];

    /// Returns the query of a request with this kind of text.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Prose => "prose",
            Self::Code => "code",
            Self::Base64 => "base64",
            Self::Run => "run",
        }
    }

    /// Returns the path and the query of a request with this kind of text.
    pub(crate) fn target(self) -> String {
        let path = if self == Self::Ordinary { "/items" } else { "/v1/messages" };
        format!("{path}?{}", self.name())
    }

    /// Returns the body of a request.
    pub(crate) fn question(self) -> String {
        self.body(r#"{"model":"m-1","max_tokens":200,"messages":[{"role":"user","content":""#, r#""}]}"#)
    }

    /// Returns the body of a response.
    pub(crate) fn answer(self) -> String {
        let beginning = match self {
            Self::Ordinary => r#"{"items":[{"id":1,"title":""#,
            _ => {
                r#"{"type":"message","model":"m-1","usage":{"input_tokens":300,"output_tokens":200},"content":[{"text":""#
            }
        };
        self.body(beginning, r#""}]}"#)
    }

    fn body(self, beginning: &str, end: &str) -> String {
        let mut text: String = self.text().chars().take(LENGTH - beginning.len() - end.len()).collect();
        // If the truncated text ends in an unpaired backslash, the backslash would escape the quote after the text.
        if (text.len() - text.trim_end_matches('\\').len()) % 2 == 1 {
            text.pop();
            text.push(' ');
        }
        format!("{beginning}{text}{end}")
    }

    /// Returns at least as many characters as a body needs.
    fn text(self) -> String {
        match self {
            Self::Ordinary | Self::Prose => {
                "The test fails because the table is read before it is filled, so the first entry is missing. Move the \
                 call after the loop, and add a case with two entries. "
                    .repeat(8)
            }
            Self::Code => {
                let line = |number: usize| {
                    format!(
                        "    let value = table.get(&key_{number}).map(|entry| entry.size + {number});\\n    \
                         assert_eq!(value, Some({number}), \\\"src/module_{number}.rs\\\");\\n"
                    )
                };
                (10..30).map(line).collect()
            }
            Self::Base64 => {
                let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
                let mut state = 1_u64;
                let mut next = || {
                    // A linear congruential generator with the constants of Knuth's MMIX.
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    char::from(digits[usize::try_from(state >> 58).unwrap_or_default()])
                };
                (0..LENGTH).map(|_| next()).collect()
            }
            Self::Run => "x".repeat(LENGTH),
        }
    }
}
