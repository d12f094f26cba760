//! Learns how many real tokens of a model correspond to one estimated token.
//!
//! The agent writes the requests, so the agent controls the data for this calibration. The agent must not be able to
//! weaken a budget, so the calibration never lowers an estimate. Only text that the model read and the provider counted
//! can raise an estimate.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The maximum number of models with a calibration. Estimates for further models are not calibrated.
const MODELS: usize = 64;

/// The calibration uses this number of the latest responses of a model.
const RESPONSES: usize = 8;

/// The shortest text from which the calibration learns, in estimated tokens. A provider adds a few hundred tokens to
/// each prompt, so the ratio for a shorter text would be too high.
const MIN_TEXT: u64 = 4096;

/// The denominator of a ratio.
const PER: u64 = 1000;

/// The highest accepted ratio. No tokenizer splits a text into more tokens than the text has bytes.
const MAX_RATIO: u64 = 4 * PER;

/// The real tokens per [`PER`] estimated tokens, for the last responses of each model.
#[derive(Default)]
pub(super) struct Calibration(Mutex<HashMap<String, VecDeque<u64>>>);

impl Calibration {
    /// Returns the calibrated estimate of the tokens of a text. `text` is the estimate that does not depend on the
    /// model. The result is higher if `model` used more tokens than estimated for one of its latest requests.
    pub(super) fn raise(&self, model: Option<&str>, text: u64) -> u64 {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let learned = model.and_then(|model| models.get(model)).and_then(|ratios| ratios.iter().max());
        learned.map_or(text, |ratio| text.saturating_mul(*ratio).div_ceil(PER))
    }

    /// Learns from a text-only prompt whose tokens the provider reported.
    pub(super) fn learn(&self, model: Option<&str>, text: u64, tokens: u64) {
        let Some(model) = model.filter(|_| text >= MIN_TEXT && tokens > 0) else { return };
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if models.len() >= MODELS && !models.contains_key(model) {
            return;
        }
        let ratios = models.entry(model.to_owned()).or_default();
        ratios.push_back(tokens.saturating_mul(PER).div_ceil(text).clamp(PER, MAX_RATIO));
        if ratios.len() > RESPONSES {
            ratios.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_the_highest_of_the_last_ratios() {
        let calibration = Calibration::default();
        let raised = |text| calibration.raise(Some("m"), text);
        calibration.learn(Some("m"), 100, 900);
        assert_eq!(raised(30_000), 30_000, "a short text says little");
        calibration.learn(Some("m"), 10_000, 15_000);
        assert_eq!(raised(10_001), 15_002, "rounded up");
        calibration.learn(Some("m"), 10_000, 10_000_000);
        assert_eq!(raised(10_000), 40_000, "bounded");
        for _ in 0..RESPONSES {
            calibration.learn(Some("m"), 10_000, 12_000);
        }
        assert_eq!(raised(10_000), 12_000);
        assert_eq!((calibration.raise(Some("other"), 7), calibration.raise(None, u64::MAX)), (7, u64::MAX));
    }

    /// Requests that use far fewer tokens than estimated must not lower the estimate of a later request.
    #[test]
    fn no_request_lowers_an_estimate() {
        let calibration = Calibration::default();
        for _ in 0..10 * RESPONSES {
            calibration.learn(Some("m"), 1_000_000, 1);
        }
        assert_eq!(calibration.raise(Some("m"), 30_000), 30_000);
    }

    #[test]
    fn a_bottle_cannot_fill_the_memory_with_models() {
        let calibration = Calibration::default();
        for number in 0..10 * MODELS {
            calibration.learn(Some(&number.to_string()), 10_000, 1);
        }
        assert_eq!(calibration.0.lock().expect("no panic").len(), MODELS);
    }
}
