//! Measurements that tolerate other load on the machine: interleaved rounds, medians and ratios. Also
//! measures the memory of processes.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// The measured durations of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The name of the measurement.
    pub name: String,
    /// The duration of every round, in order.
    pub rounds: Vec<Duration>,
}

/// An operation to measure. It runs once per round, and returns the duration of its measured part.
pub type Contender<'a> = (&'a str, Box<dyn FnMut() -> Result<Duration> + 'a>);

/// Runs each of `contenders` once per round, one after the other, so that other load on the machine affects
/// all of them equally. The first round warms up caches, and is discarded.
///
/// # Errors
/// Returns the first error of a contender.
pub fn interleaved(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Result<Vec<Sample>> {
    let mut samples: Vec<Sample> =
        contenders.iter().map(|(name, _)| Sample { name: (*name).to_owned(), rounds: Vec::new() }).collect();
    for round in 0..=rounds {
        for ((_, run), sample) in contenders.iter_mut().zip(&mut samples) {
            let took = run()?;
            if round > 0 {
                sample.rounds.push(took);
            }
        }
    }
    Ok(samples)
}

/// Measures how long `run` takes.
///
/// # Errors
/// Returns the error of `run`.
pub fn timed<T>(run: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let started = Instant::now();
    run()?;
    Ok(started.elapsed())
}

/// Returns the memory of a process and its descendants in bytes, without mapped files.
#[must_use]
pub fn held(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let own = own.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let sum = |all: String| all.split_whitespace().filter_map(|pid| pid.parse().ok()).map(held).sum::<u64>();
    own.unwrap_or(0) * 1024 + children.map(sum).sum::<u64>()
}

/// Runs `work`. Returns its result, and the peak memory that the process and its descendants used meanwhile.
pub fn peak<T>(pid: u32, work: impl FnOnce() -> T) -> (T, u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = held(pid);
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
                most = most.max(held(pid));
            }
            most
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        (worked, watch.join().unwrap_or_default())
    })
}

/// The time between two reads of a process's memory.
const LOOK: Duration = Duration::from_millis(20);

impl Sample {
    /// Returns a quantile of the durations (0.5 is the median); zero if there are no rounds.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.rounds.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 ≤ share ≤ 1")]
        let at = (last as f64 * share.clamp(0.0, 1.0)).round() as usize;
        sorted.get(at).copied().unwrap_or_default()
    }

    /// Returns the median duration.
    #[must_use]
    pub fn median(&self) -> Duration {
        self.quantile(0.5)
    }

    /// Returns the ratio of this sample's median to the median of `other`.
    #[must_use]
    pub fn ratio_to(&self, other: &Self) -> f64 {
        self.median().as_secs_f64() / other.median().as_secs_f64()
    }

    /// Formats the sample as a line of a table.
    #[must_use]
    pub fn line(&self) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        format!(
            "{:<28} median {:>8.2} ms   10% {:>8.2} ms   90% {:>8.2} ms   {} rounds",
            self.name,
            ms(self.median()),
            ms(self.quantile(0.1)),
            ms(self.quantile(0.9)),
            self.rounds.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaves_rounds_and_discards_the_first() {
        let order = std::cell::RefCell::new(String::new());
        let contender = |name: &'static str, ms: u64| -> Contender<'_> {
            let order = &order;
            let run = move || {
                order.borrow_mut().push_str(name);
                Ok(Duration::from_millis(ms))
            };
            (name, Box::new(run))
        };
        let samples = interleaved(2, vec![contender("a", 30), contender("b", 10)]).unwrap();
        assert_eq!(order.borrow().as_str(), "ababab");
        assert_eq!(samples[0].rounds.len(), 2);
        assert!((samples[0].ratio_to(&samples[1]) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_peak_includes_child_processes() {
        let hold = || {
            std::process::Command::new("sh")
                .args(["-c", "x=$(head -c 30000000 /dev/zero | tr '\\0' x); sleep 0.3"])
                .status()
        };
        let (held, most) = peak(std::process::id(), hold);
        assert!(held.unwrap().success());
        assert!(most > 30_000_000, "{most}");
    }

    #[test]
    fn quantiles_are_measured_rounds() {
        let rounds = [5, 1, 3].map(Duration::from_millis).to_vec();
        let sample = Sample { name: "x".to_owned(), rounds };
        for (share, ms) in [(0.0, 1), (0.5, 3), (1.0, 5), (7.0, 5)] {
            assert_eq!(sample.quantile(share), Duration::from_millis(ms), "{share}");
        }
        assert_eq!(Sample { name: "none".to_owned(), rounds: Vec::new() }.median(), Duration::ZERO);
    }
}
