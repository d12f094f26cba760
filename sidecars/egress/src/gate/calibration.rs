//! Learns how many tokens a model needs for the bytes of a request.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bottle_meter::estimate;

/// The most models that are remembered. An estimate for another one is not calibrated.
const MODELS: usize = 64;

/// The number of responses that are remembered for a model.
const RESPONSES: usize = 8;

/// The shortest request that is remembered, in bytes. A model adds a few hundred tokens to each prompt, so the ratio of
/// a shorter request is too high.
const MIN_BYTES: u64 = 4096;

/// Tokens per so many bytes.
const PER: u64 = 1_000_000;

/// The tokens per [`PER`] bytes of the last responses of each model.
#[derive(Default)]
pub(super) struct Calibration(Mutex<HashMap<String, VecDeque<u64>>>);

impl Calibration {
    /// Estimates the tokens of a prompt from the length of the request, rounded up: as many for each byte as the model
    /// needed at most for one of the last requests. A request of an unknown model needs a third of a token per byte.
    pub(super) fn estimate(&self, model: Option<&str>, bytes: u64) -> u64 {
        let models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let learned = model.and_then(|model| models.get(model)).and_then(|ratios| ratios.iter().max());
        match learned {
            Some(ratio) => bytes.saturating_mul(*ratio).div_ceil(PER),
            None => estimate(bytes),
        }
    }

    /// Remembers a response whose provider reported the tokens of the prompt.
    pub(super) fn learn(&self, model: Option<&str>, bytes: u64, tokens: u64) {
        let Some(model) = model.filter(|_| bytes >= MIN_BYTES && tokens > 0) else { return };
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if models.len() >= MODELS && !models.contains_key(model) {
            return;
        }
        let ratios = models.entry(model.to_owned()).or_default();
        ratios.push_back(tokens.saturating_mul(PER).div_ceil(bytes));
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
        let estimate = |bytes| calibration.estimate(Some("m"), bytes);
        assert_eq!(estimate(30_000), 10_000);
        calibration.learn(Some("m"), 100, 90);
        assert_eq!(estimate(30_000), 10_000, "a short request says little");
        calibration.learn(Some("m"), 40_000, 10_000);
        assert_eq!(estimate(40_001), 10_001, "rounded up");
        calibration.learn(Some("m"), 10_000_000, 1_000);
        assert_eq!(estimate(40_000), 10_000, "images do not make text cheaper");
        for _ in 0..RESPONSES {
            calibration.learn(Some("m"), 50_000, 10_000);
        }
        assert_eq!(estimate(50_000), 10_000);
        assert_eq!(calibration.estimate(Some("other"), 30_000), 10_000);
        assert_eq!(calibration.estimate(None, u64::MAX), 1_000_000_000);
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
