//! The limits of models, by model name. A budget needs these limits for requests whose cost cannot be computed from the
//! request body.
//!
//! A budget reserves the limits before a request is sent, so a limit that is too high only makes a request wait for a
//! larger lease. An unknown model name has the highest limits, because an agent can choose any name.

/// The limits of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of tokens of the prompt and the response together.
    pub window: u64,
    /// The maximum number of tokens of one response.
    pub output: u64,
    /// The tokens that are billed for an image.
    pub image: u64,
}

/// The maximum tokens of an image for most models. The providers scale down larger images: Anthropic to 4,784 tokens,
/// OpenAI to 10,000 patches of one token each (<https://platform.claude.com/docs/en/build-with-claude/vision>,
/// <https://developers.openai.com/api/docs/guides/images-vision>).
const IMAGE: u64 = 10_000;

/// The maximum tokens of an image for GPT-4o mini. OpenAI bills 2,833 tokens for an image, plus 5,667 tokens for each
/// of up to eight tiles (<https://developers.openai.com/api/docs/guides/images-vision>).
const TILED_IMAGE: u64 = 2_833 + 8 * 5_667;

/// The limits of a model whose name is not in [`MODELS`]. The window is that of the largest hosted models: xAI and
/// Google document 2,000,000 tokens. The limits for output and images are the largest ones in [`MODELS`].
const UNKNOWN: Limits = Limits { window: 2_000_000, output: 131_072, image: TILED_IMAGE };

/// Prefixes of model names, and the limits of the models. More specific prefixes come first. A model name either equals
/// its prefix, or continues after the prefix with `-`, `@` or `[`.
///
/// Sources, read in November 2026: <https://platform.claude.com/docs/en/about-claude/models/overview> for `claude`
/// (Sonnet 4 and 4.5 have the window that is listed here only with a beta header), and
/// <https://developers.openai.com/api/docs/models> for the other models.
const MODELS: [(&str, Limits); 32] = [
    ("claude-opus-4-8", limits(1_000_000, 128_000)),
    ("claude-opus-4-7", limits(1_000_000, 128_000)),
    ("claude-opus-4-6", limits(1_000_000, 128_000)),
    ("claude-opus-4-5", limits(200_000, 64_000)),
    ("claude-opus-4-1", limits(200_000, 32_000)),
    ("claude-opus-4", limits(200_000, 32_000)),
    ("claude-sonnet-4-6", limits(1_000_000, 128_000)),
    ("claude-sonnet-4-5", limits(1_000_000, 64_000)),
    ("claude-sonnet-4", limits(1_000_000, 64_000)),
    ("claude-haiku-4-5", limits(200_000, 64_000)),
    ("claude-3-7-sonnet", limits(200_000, 128_000)),
    ("claude-3", limits(200_000, 8_192)),
    ("claude", limits(1_000_000, 128_000)),
    ("gpt-5-6", limits(1_050_000, 128_000)),
    ("gpt-5-5", limits(1_050_000, 128_000)),
    ("gpt-5-4", limits(1_050_000, 128_000)),
    ("gpt-5-3", limits(400_000, 128_000)),
    ("gpt-5-2", limits(400_000, 128_000)),
    ("gpt-5-1", limits(400_000, 128_000)),
    ("gpt-5-codex", limits(400_000, 128_000)),
    ("gpt-5-mini", limits(400_000, 128_000)),
    ("gpt-5-nano", limits(400_000, 128_000)),
    ("gpt-5", limits(400_000, 128_000)),
    ("gpt-4-1", limits(1_047_576, 32_768)),
    ("gpt-4o-mini", Limits { image: TILED_IMAGE, ..limits(128_000, 16_384) }),
    ("gpt-4o", limits(128_000, 16_384)),
    ("gpt-oss", limits(131_072, 131_072)),
    ("o1", limits(200_000, 100_000)),
    ("o3", limits(200_000, 100_000)),
    ("o4-mini", limits(200_000, 100_000)),
    ("codex-mini", limits(200_000, 100_000)),
    ("codex", limits(1_050_000, 128_000)),
];

const fn limits(window: u64, output: u64) -> Limits {
    Limits { window, output, image: IMAGE }
}

impl Limits {
    /// The limits of a model. `None` means that the request names no model, or several models.
    #[must_use]
    pub fn of(model: Option<&str>) -> Self {
        let Some(model) = model else { return UNKNOWN };
        // Gateways write a model name as `vendor/model:variant`, and write versions with a dot.
        let name = model.rsplit('/').next().unwrap_or(model);
        let name = name.split(':').next().unwrap_or(name);
        let found = MODELS.iter().find(|(known, _)| begins(name.as_bytes(), known.as_bytes()));
        found.map_or(UNKNOWN, |(_, limits)| *limits)
    }

    /// Whether the provider bills more tokens for an image than the image occupies in the window. The cost of a prompt
    /// can then exceed the window.
    #[must_use]
    pub fn bill_images_apart(&self) -> bool {
        self.image > IMAGE
    }
}

/// Whether `name` is `known`, or a variant of `known`. A dot in `name` matches a dash in `known`.
fn begins(name: &[u8], known: &[u8]) -> bool {
    let dashed = |byte: u8| if byte == b'.' { b'-' } else { byte };
    name.len() >= known.len()
        && name.iter().zip(known).all(|(byte, known)| dashed(*byte) == *known)
        && name.get(known.len()).is_none_or(|next| matches!(next, b'-' | b'@' | b'['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_most_special_name() {
        for (name, window, output) in [
            ("claude-opus-4-1-20250805", 200_000, 32_000),
            ("claude-opus-4-8", 1_000_000, 128_000),
            ("anthropic/claude-haiku-4.5:online", 200_000, 64_000),
            ("claude-something-new", 1_000_000, 128_000),
            ("gpt-5.1-codex", 400_000, 128_000),
            ("gpt-5.6-sol", 1_050_000, 128_000),
            ("gpt-5.9", 2_000_000, 131_072),
            ("gpt-4o-mini", 128_000, 16_384),
            ("o3", 200_000, 100_000),
            ("o33", 2_000_000, 131_072),
            ("", 2_000_000, 131_072),
        ] {
            let limits = Limits::of(Some(name));
            assert_eq!((limits.window, limits.output), (window, output), "{name}");
        }
        assert_eq!(Limits::of(None), UNKNOWN);
    }

    #[test]
    fn no_special_name_stands_behind_a_general_one() {
        for (at, (general, _)) in MODELS.iter().enumerate() {
            let hidden =
                MODELS[at + 1..].iter().find(|(name, _)| begins(name.as_bytes(), general.as_bytes()));
            assert_eq!(hidden, None, "{general}");
        }
    }

    #[test]
    fn no_model_has_higher_limits_than_an_unknown_one() {
        for (name, limits) in MODELS {
            assert!(limits.window <= UNKNOWN.window, "{name}");
            assert!(limits.output <= UNKNOWN.output && limits.output <= limits.window, "{name}");
            assert!(limits.image <= UNKNOWN.image, "{name}");
        }
    }
}
