//! The bodies of requests and answers: 1 KiB of JSON each.

/// The length of each body.
pub(crate) const LENGTH: usize = 1024;

/// What a conversation is about. The scanner decodes what may be encoded, so its speed depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A request to a service that is no model, and its answer. No tokens are counted.
    Ordinary,
    /// Sentences of a model. This and the following are answers whose tokens are counted.
    Prose,
    /// Source code, escaped.
    Code,
    /// A part of an image or a file.
    Base64,
    /// One letter again and again.
    Run,
}

impl Content {
    pub(crate) const ALL: [Self; 5] = [Self::Ordinary, Self::Prose, Self::Code, Self::Base64, Self::Run];

    /// The query of its requests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Prose => "prose",
            Self::Code => "code",
            Self::Base64 => "base64",
            Self::Run => "run",
        }
    }

    /// The path and query of its requests.
    pub(crate) fn target(self) -> String {
        let path = if self == Self::Ordinary { "/items" } else { "/v1/messages" };
        format!("{path}?{}", self.name())
    }

    /// The body of a request.
    pub(crate) fn question(self) -> String {
        self.body(r#"{"model":"m-1","max_tokens":200,"messages":[{"role":"user","content":""#, r#""}]}"#)
    }

    /// The body of an answer.
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
        // The end of the text may be half an escape, which would hide the quote after it.
        if (text.len() - text.trim_end_matches('\\').len()) % 2 == 1 {
            text.pop();
            text.push(' ');
        }
        format!("{beginning}{text}{end}")
    }

    /// More characters than a body has.
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
                    // The constants of Knuth's MMIX.
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    char::from(digits[usize::try_from(state >> 58).unwrap_or_default()])
                };
                (0..LENGTH).map(|_| next()).collect()
            }
            Self::Run => "x".repeat(LENGTH),
        }
    }
}
