//! How long a question waits that was rejected before: a user who said no is not asked the same again at once.
//!
//! Equal questions are told by what is asked for: the hosts of routes, what was found of a report. What an asker can
//! vary at no cost (the reason given, a path, a commit) makes no other question.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bottle_contract::proposal;
use bottle_contract::queue::Proposal;
use serde_json::Value;

/// How long after the first rejection, and at most; it doubles with each.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// What is remembered of rejections; beyond it the one that is over first is forgotten.
const MOST: usize = 512;

/// Parts of a report that differ from one try to the next.
const VARIED: [&str; 7] = ["commit", "file", "line", "marked", "method", "path", "refs"];

/// What a question asks for, a word each.
pub(crate) type Keys = BTreeSet<String>;

/// What a question asks for: of several things, each of them.
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

/// What was rejected.
#[derive(Debug, Default)]
pub(crate) struct Cooling(HashMap<String, Cool>);

#[derive(Debug)]
struct Cool {
    until: Instant,
    step: Duration,
    /// How often it was asked for since.
    asked: u32,
}

impl Cooling {
    /// It is asked for, again perhaps: until when it waits, and how often it was asked for before.
    pub(crate) fn asked(&mut self, keys: &Keys, now: Instant) -> (Option<Instant>, u32) {
        self.0.retain(|_, cool| cool.until + LONGEST > now);
        let (mut until, mut before) = (None, 0);
        for key in keys {
            if let Some(cool) = self.0.get_mut(key) {
                cool.asked = cool.asked.saturating_add(1);
                before = before.max(cool.asked);
                until = until.max(Some(cool.until).filter(|until| *until > now));
            }
        }
        (until, before)
    }

    /// It was rejected.
    pub(crate) fn rejected(&mut self, keys: Keys, now: Instant) {
        for key in keys {
            let cool = self.0.entry(key).or_insert(Cool { until: now, step: FIRST / 2, asked: 0 });
            cool.step = (cool.step * 2).min(LONGEST);
            cool.until = now + cool.step;
        }
        while self.0.len() > MOST {
            let first = self.0.iter().min_by_key(|(_, cool)| cool.until).map(|(key, _)| key.clone());
            first.map(|key| self.0.remove(&key));
        }
    }

    /// It was approved.
    pub(crate) fn approved(&mut self, keys: &Keys) {
        self.0.retain(|key, _| !keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use bottle_contract::queue::{Id, Tool};
    use jiff::Timestamp;

    use super::*;

    fn asks(tool: Tool, file: &str) -> Keys {
        keys(&Proposal {
            id: Id::of([1; 16]),
            bottle_slug: "a-1".parse().expect("slug"),
            tool,
            proposed_file: file.to_owned(),
            justification: String::new(),
            arrival_timestamp: Timestamp::UNIX_EPOCH,
            revision: None,
            expires_at: Timestamp::UNIX_EPOCH,
            asked_before: 0,
        })
    }

    #[test]
    fn what_costs_nothing_to_vary_makes_no_other_question() {
        let hosts = asks(Tool::EgressAllow, "[{host: evil.example}]");
        assert_eq!(asks(Tool::EgressBlock, "[{host: EVIL.example, matches: [{methods: [GET]}]}]"), hosts);
        assert!(!asks(Tool::EgressAllow, "[{host: evil.example}, {host: a.example}]").is_disjoint(&hosts));
        assert!(asks(Tool::EgressAllow, "[{host: other.example}]").is_disjoint(&hosts));
        let sends = |path: &str, found: &str| {
            asks(
                Tool::EgressTokenAllow,
                &format!(
                    r#"{{"host": "a", "port": 443, "method": "GET", "path": "{path}", "found": "{found}"}}"#
                ),
            )
        };
        assert_eq!(sends("/1", "a key"), sends("/2", "a key"));
        assert_ne!(sends("/1", "a key"), sends("/1", "a password"));
        let pushes = |commit: &str, rule: &str| {
            asks(
                Tool::GitleaksAllow,
                &format!(
                    r#"{{"repository": "r", "refs": ["{commit}"], "findings": [{{"rule": "{rule}", "commit": "{commit}",
                    "file": "{commit}", "line": 3, "finding": "a..b"}}]}}"#
                ),
            )
        };
        assert_eq!(pushes("1", "key"), pushes("2", "key"));
        assert_ne!(pushes("1", "key"), pushes("1", "other"));
        assert_ne!(asks(Tool::GitleaksAllow, "a"), asks(Tool::GitleaksAllow, "b"));
    }

    #[test]
    fn each_rejection_doubles_the_wait_up_to_a_bound_and_an_approval_ends_it() {
        let (mut cooling, mut now) = (Cooling::default(), Instant::now());
        let keys = Keys::from(["k".to_owned()]);
        assert_eq!(cooling.asked(&keys, now), (None, 0));
        let mut step = FIRST;
        for count in 1..=20 {
            cooling.rejected(keys.clone(), now);
            assert_eq!(cooling.asked(&keys, now), (Some(now + step), count));
            now += step;
            step = (step * 2).min(LONGEST);
        }
        assert_eq!(cooling.asked(&keys, now), (None, 21), "it is over");
        assert_eq!(cooling.asked(&Keys::from(["other".to_owned()]), now), (None, 0));
        cooling.approved(&keys);
        assert_eq!(cooling.asked(&keys, now), (None, 0));
        for key in 0..MOST + 9 {
            cooling.rejected(Keys::from([key.to_string()]), now + Duration::from_secs(key as u64));
        }
        assert_eq!(cooling.0.len(), MOST);
        assert_eq!(cooling.asked(&Keys::from(["0".to_owned()]), now).1, 0, "the first is forgotten");
        assert_eq!(cooling.asked(&keys, now + LONGEST * 3), (None, 0));
        assert!(cooling.0.is_empty(), "and in time all of them");
    }
}
