//! Delays questions about subjects that the user rejected before. Because of the delay, the user is not immediately
//! asked again.
//!
//! The subjects of a question are the hosts that the question asks for, or the findings that the question reports. A
//! question is delayed if one of its subjects has a cooldown. A subject does not contain fields that the agent can vary
//! at no cost, such as the reason, a path or a commit.
//!
//! If the agent has abandoned many questions within a minute, all of its questions are delayed. The reason is that each
//! question is a file on disk and notifies the user.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bottle_policy::proposal;
use bottle_protocol::queue::Proposal;
use serde_json::Value;

/// The cooldown of a subject after its first rejection. Each further rejection doubles the cooldown, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(10);
/// The maximum cooldown of a subject.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// The maximum number of stored cooldowns. If there are more, the cooldown that ends first is dropped.
const MOST: usize = 512;

/// The number of questions that an agent may abandon within [`ABANDONED_WITHIN`]. If the agent has abandoned this many
/// questions, further questions are delayed.
const ABANDONED: usize = bottle_protocol::queue::MAX_PENDING;

/// The period in which abandoned questions are counted. An interrupted client abandons only a few questions.
const ABANDONED_WITHIN: Duration = Duration::from_secs(60);

/// The fields of a report that its subjects do not contain, because the agent can vary these fields at no cost.
const VARIED: [&str; 8] = ["commit", "excerpt", "file", "line", "marked", "method", "path", "refs"];

/// The subjects of a question. Each subject is one string.
pub(crate) type Keys = BTreeSet<String>;

/// Returns the subjects of a question, which are the hosts or the findings in the question.
pub(crate) fn keys(asked: &Proposal) -> Keys {
    let text = || BTreeSet::from([format!("{} {}", asked.tool.name(), asked.proposed_file)]);
    if !asked.tool.reports() {
        let Ok(routes) = proposal::parse(&asked.proposed_file) else { return text() };
        return routes.routes().iter().map(|route| format!("host {}", route.host)).collect();
    }
    let Ok(Value::Object(mut report)) = serde_json::from_str(&asked.proposed_file) else { return text() };
    let plain = |value: &mut Value| {
        if let Value::Object(fields) = value {
            fields.retain(|name, _| !VARIED.contains(&name.as_str()));
        }
        value.to_string()
    };
    let findings = report.remove("findings");
    let about = plain(&mut Value::Object(report));
    let key = |finding: String| format!("{} {about} {finding}", asked.tool.name());
    match findings {
        Some(Value::Array(mut findings)) => findings.iter_mut().map(plain).map(key).collect(),
        _ => BTreeSet::from([key(String::new())]),
    }
}

/// The cooldowns of rejected subjects, and the times of the last [`ABANDONED`] abandoned questions.
#[derive(Debug, Default)]
pub(crate) struct Cooldowns {
    subjects: HashMap<String, Cooldown>,
    abandoned: VecDeque<Instant>,
}

#[derive(Debug)]
struct Cooldown {
    until: Instant,
    step: Duration,
    /// The number of questions about this subject since its first rejection.
    asked: u32,
}

impl Cooldowns {
    /// Records that a question was asked. Returns the time until which the question is delayed. Also returns the number
    /// of questions about the subject since its first rejection, including this question. If the question has several
    /// subjects, returns the largest number.
    pub(crate) fn record_question(&mut self, keys: &Keys, now: Instant) -> (Option<Instant>, u32) {
        self.subjects.retain(|_, cool| cool.until + LONGEST > now);
        let many = self.abandoned.len() >= ABANDONED;
        let first = self.abandoned.front().filter(|_| many).map(|first| *first + ABANDONED_WITHIN);
        let (mut until, mut before) = (first.filter(|until| *until > now), 0);
        for key in keys {
            if let Some(cool) = self.subjects.get_mut(key) {
                cool.asked = cool.asked.saturating_add(1);
                before = before.max(cool.asked);
                until = until.max(Some(cool.until).filter(|until| *until > now));
            }
        }
        (until, before)
    }

    /// Starts a cooldown for each rejected subject. If the subject already has a cooldown, the new cooldown is twice as
    /// long.
    pub(crate) fn reject(&mut self, keys: Keys, now: Instant) {
        for key in keys {
            let cool = self.subjects.entry(key).or_insert(Cooldown { until: now, step: FIRST / 2, asked: 0 });
            cool.step = (cool.step * 2).min(LONGEST);
            cool.until = now + cool.step;
        }
        while self.subjects.len() > MOST {
            let first = self.subjects.iter().min_by_key(|(_, cool)| cool.until).map(|(key, _)| key.clone());
            first.map(|key| self.subjects.remove(&key));
        }
    }

    /// Records that the agent has abandoned a question that was in the queue.
    pub(crate) fn record_abandoned(&mut self, now: Instant) {
        self.abandoned.push_back(now);
        while self.abandoned.len() > ABANDONED {
            self.abandoned.pop_front();
        }
    }

    /// Removes the cooldowns of the subjects `keys`, because the user has approved them.
    pub(crate) fn approve(&mut self, keys: &Keys) {
        self.subjects.retain(|key, _| !keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use bottle_protocol::queue::{Id, Tool};
    use jiff::Timestamp;

    use super::*;

    fn keys_of(tool: Tool, file: &str) -> Keys {
        keys(&Proposal {
            id: Id::from_random([1; 16]),
            bottle_slug: "a-1".parse().expect("slug"),
            tool,
            proposed_file: file.to_owned(),
            justification: String::new(),
            arrival_timestamp: Timestamp::UNIX_EPOCH,
            revision: None,
            expires_at: Timestamp::UNIX_EPOCH,
            asked_before: 0,
            excerpt: Vec::new(),
        })
    }

    #[test]
    fn ignores_fields_that_cost_nothing_to_vary() {
        let hosts = keys_of(Tool::EgressAllow, "[{host: evil.example}]");
        assert_eq!(keys_of(Tool::EgressBlock, "[{host: EVIL.example, matches: [{methods: [GET]}]}]"), hosts);
        assert!(!keys_of(Tool::EgressAllow, "[{host: evil.example}, {host: a.example}]").is_disjoint(&hosts));
        assert!(keys_of(Tool::EgressAllow, "[{host: other.example}]").is_disjoint(&hosts));
        let sends = |path: &str, found: &str| {
            keys_of(
                Tool::EgressTokenAllow,
                &format!(
                    r#"{{"host": "a", "port": 443, "method": "GET", "path": "{path}", "found": "{found}"}}"#
                ),
            )
        };
        assert_eq!(sends("/1", "a key"), sends("/2", "a key"));
        assert_ne!(sends("/1", "a key"), sends("/1", "a password"));
        let pushes = |commit: &str, rule: &str| {
            keys_of(
                Tool::GitleaksAllow,
                &format!(
                    r#"{{"repository": "r", "refs": ["{commit}"], "findings": [{{"rule": "{rule}", "commit": "{commit}",
                    "file": "{commit}", "line": 3, "finding": "a..b"}}]}}"#
                ),
            )
        };
        assert_eq!(pushes("1", "key"), pushes("2", "key"));
        assert_ne!(pushes("1", "key"), pushes("1", "other"));
        assert_ne!(keys_of(Tool::GitleaksAllow, "a"), keys_of(Tool::GitleaksAllow, "b"));
    }

    #[test]
    fn each_rejection_doubles_the_cooldown_up_to_a_limit_and_an_approval_removes_it() {
        let (mut cooldowns, mut now) = (Cooldowns::default(), Instant::now());
        let keys = Keys::from(["k".to_owned()]);
        assert_eq!(cooldowns.record_question(&keys, now), (None, 0));
        let mut step = FIRST;
        for count in 1..=20 {
            cooldowns.reject(keys.clone(), now);
            assert_eq!(cooldowns.record_question(&keys, now), (Some(now + step), count));
            now += step;
            step = (step * 2).min(LONGEST);
        }
        assert_eq!(cooldowns.record_question(&keys, now), (None, 21), "the cooldown is over");
        assert_eq!(cooldowns.record_question(&Keys::from(["other".to_owned()]), now), (None, 0));
        cooldowns.approve(&keys);
        assert_eq!(cooldowns.record_question(&keys, now), (None, 0));
        for key in 0..MOST + 9 {
            cooldowns.reject(Keys::from([key.to_string()]), now + Duration::from_secs(key as u64));
        }
        assert_eq!(cooldowns.subjects.len(), MOST);
        assert_eq!(
            cooldowns.record_question(&Keys::from(["0".to_owned()]), now).1,
            0,
            "the first is dropped"
        );
        assert_eq!(cooldowns.record_question(&keys, now + LONGEST * 3), (None, 0));
        assert!(cooldowns.subjects.is_empty(), "all end in time");
    }
    #[test]
    fn delays_questions_after_many_were_abandoned() {
        let (mut cooldowns, start) = (Cooldowns::default(), Instant::now());
        let keys = Keys::from(["k".to_owned()]);
        for second in 0..ABANDONED as u64 {
            assert_eq!(cooldowns.record_question(&keys, start), (None, 0));
            cooldowns.record_abandoned(start + Duration::from_secs(second));
        }
        assert_eq!(cooldowns.record_question(&keys, start), (Some(start + ABANDONED_WITHIN), 0));
        assert_eq!(cooldowns.record_question(&keys, start + ABANDONED_WITHIN), (None, 0));
        cooldowns.record_abandoned(start + ABANDONED_WITHIN);
        let second = start + Duration::from_secs(1) + ABANDONED_WITHIN;
        assert_eq!(cooldowns.record_question(&keys, start + ABANDONED_WITHIN), (Some(second), 0));
    }
}
