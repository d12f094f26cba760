//! Computes the maximum number of tokens that a request can use, from its parsed body.
//!
//! The tokens of the prompt are estimated from its text. The calibration never lowers this estimate, but the provider's
//! own count can replace it. Content that the request only references may fill the context window of the model. The
//! output is the request's own limit. If the request has no limit, the output is the default limit or the most that the
//! model can write.

use bottle_meter::{Expected, Limits, MeteredRequest};
use bottle_protocol::usage::Counts;

/// The largest number of tokens that can be reserved for a request.
const MAX_TOKENS: u64 = 1 << 53;

/// The tokens that a request can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cost {
    model: Option<String>,
    /// The estimated tokens of the text, if the prompt is almost only text.
    text: Option<u64>,
    /// The tokens of the prompt, estimated or counted by the provider.
    pub(crate) prompt: u64,
    /// The maximum tokens of all responses together.
    output: u64,
    /// Whether the model may read more than the request contains.
    refers: bool,
}

impl Cost {
    /// The tokens of prompt and response together.
    pub(crate) fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.output).min(MAX_TOKENS)
    }

    /// The tokens that the request needs in any case, however many tokens the provider counts in its prompt.
    pub(crate) fn least(&self) -> u64 {
        self.output.clamp(1, MAX_TOKENS)
    }

    /// Computes the tokens of a request to a model with the given `limits`. If the request has no output limit,
    /// `default_output` replaces the output limit of the model. `raise` calibrates the estimate for the text.
    pub(super) fn of(
        request: &MeteredRequest,
        limits: Limits,
        default_output: Option<u64>,
        raise: impl FnOnce(Option<&str>, u64) -> u64,
    ) -> Self {
        let model = request.model.clone();
        let output = request.output.unwrap_or_else(|| default_output.unwrap_or(limits.output));
        let raised = raise(model.as_deref(), request.text).saturating_sub(request.text);
        let text = request.prompt().saturating_add(raised);
        let images = request.images.saturating_mul(limits.image);
        let refers = request.reference.is_some();
        let fit = |estimate: u64| match refers {
            true => estimate.max(limits.window.saturating_sub(output)),
            // The provider rejects a prompt that is longer than the context window.
            false => estimate.min(limits.window),
        };
        let prompt = match limits.bill_images_apart() {
            true => fit(text).saturating_add(images),
            false => fit(text.saturating_add(images)),
        };
        let others = request.other.saturating_add(images);
        let is_text = !refers && others.saturating_mul(8) <= request.text;
        Self {
            model,
            text: is_text.then_some(request.text),
            prompt,
            output: output.saturating_mul(request.completions),
            refers,
        }
    }

    /// Returns the assumed usage of a response that does not report its usage. `reserved` states whether tokens are
    /// reserved for the response.
    pub(crate) fn expected(&self, reserved: bool) -> Expected {
        Expected { prompt: self.prompt, may_grow: self.refers, output: reserved.then_some(self.output) }
    }

    /// Returns the data for the calibration if the prompt was almost only text: the model, the estimated tokens of the
    /// text, and the reported tokens of the prompt.
    pub(super) fn lesson(&self, counts: &Counts) -> Option<(Option<&str>, u64, u64)> {
        Some((self.model.as_deref(), self.text?, counts.prompt()))
    }
}

#[cfg(test)]
mod tests {
    use bottle_protocol::usage::Api;
    use std::hash::RandomState;

    use super::*;

    fn cost(api: Api, text: &str) -> Cost {
        let request =
            MeteredRequest::read(api, text.as_bytes(), &RandomState::new(), false).expect("a request");
        Cost::of(&request, Limits::of(request.model.as_deref()), None, |_, text| text)
    }

    #[test]
    fn reserves_the_output_limit_or_the_most_that_the_model_can_write() {
        for (api, text, output) in [
            (Api::Messages, r#"{"model":"claude-opus-4-1","max_tokens":7}"#, 7),
            (Api::Messages, r#"{"model":"claude-opus-4-1"}"#, 32_000),
            (Api::Messages, r#"{"model":"mystery"}"#, 131_072),
            (Api::Messages, r#"{"model":"claude-opus-4-1","max_tokens":0}"#, 32_000),
            (Api::ChatCompletions, r#"{"max_completion_tokens":5,"n":3}"#, 15),
            (Api::ChatCompletions, r#"{"model":"gpt-4o","n":2}"#, 2 * 16_384),
            (Api::Responses, r#"{"max_output_tokens":5,"max_tokens":50}"#, 5),
        ] {
            assert_eq!(cost(api, text).output, output, "{text}");
        }
        let request =
            MeteredRequest::read(Api::Messages, b"{}", &RandomState::new(), false).expect("a request");
        assert_eq!(Cost::of(&request, Limits::of(None), Some(50), |_, text| text).output, 50);
        assert_eq!(cost(Api::Messages, r#"{"max_tokens":18446744073709551615}"#).tokens(), MAX_TOKENS);
    }

    #[test]
    fn a_reference_reserves_the_context() {
        let with = |rest: &str| cost(Api::Responses, &format!(r#"{{"model":"gpt-5.1","input":"x"{rest}}}"#));
        assert!(with("").prompt < 1000);
        let referring = with(r#","previous_response_id":"r""#);
        assert_eq!((referring.tokens(), referring.text), (400_000, None));
        let limited = with(r#","previous_response_id":"r","max_output_tokens":100"#);
        assert_eq!((limited.prompt, limited.tokens()), (399_900, 400_000));
    }

    #[test]
    fn images_can_cost_more_than_the_context() {
        let with = |model: &str, url: &str| {
            let image = format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
            let images = vec![image; 20].join(",");
            let body = format!(
                r#"{{"model":"{model}","max_tokens":1,"messages":[{{"role":"user","content":[{images}]}}]}}"#
            );
            cost(Api::ChatCompletions, &body).prompt
        };
        for (model, url, least, most) in [
            ("gpt-4o", "data:image/png;base64,AAAA", 128_000, 128_000),
            ("gpt-4o", "https://x", 200_000, 202_000),
            ("gpt-4o-mini", "data:image/png;base64,AAAA", 20 * 48_169, 20 * 48_169 + 2000),
            ("gpt-4o-mini", "https://x", 20 * 48_169 + 127_999, 20 * 48_169 + 127_999),
            ("mystery", "data:image/png;base64,AAAA", 20 * 48_169, 20 * 48_169 + 2000),
        ] {
            assert!((least..=most).contains(&with(model, url)), "{model} {url}: {}", with(model, url));
        }
    }

    #[test]
    fn a_prompt_is_never_longer_than_the_context() {
        let text = "1".repeat(300_000);
        let long = cost(
            Api::Messages,
            &format!(r#"{{"model":"claude-haiku-4-5","max_tokens":1,"system":"{text}"}}"#),
        );
        assert_eq!(long.prompt, 200_000);
    }
}
