//! The search for secrets in pushes. If the user replaces credentials while the bottle runs, further pushes are
//! searched for the new values too.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use bottle_protocol::session::git_gate::GateProvision;
use bottle_protocol::session::guest::SecretText;
use bottle_protocol::session::replaced::ReplacedValues;
use bottle_scan::{KnownSecrets, Redactor, RuleFiles, Scanner, TooLarge};

/// The search for one push.
pub(crate) struct Search {
    pub(crate) scanner: Scanner,
    /// The number of known secrets that are real credentials, which the agent never receives. These credentials come
    /// first in the scanner's known secrets. Only hits on these credentials count for the lock-out.
    pub(crate) credential_count: usize,
    redactor: Redactor,
}

impl Search {
    /// Removes secrets from a line of the log.
    pub(crate) fn redact(&self, line: &str) -> String {
        self.redactor.redact(line).into_owned()
    }
}

/// The values that pushes are searched for, and the search for the next push.
pub(crate) struct Searches {
    values: RwLock<Values>,
    rules: Arc<RuleFiles>,
    placeholders: Vec<String>,
}

struct Values {
    /// The credentials of the launch.
    credentials: Vec<SecretText>,
    replaced: ReplacedValues,
    known_secrets: Vec<SecretText>,
    search: Arc<Search>,
}

impl Searches {
    /// Prepares the search for the secrets of `provision`.
    ///
    /// # Errors
    /// [`TooLarge`] if the secrets exceed the limits of the search. The gate must then accept no push.
    pub(crate) fn new(provision: &GateProvision, rules: RuleFiles) -> Result<Self, TooLarge> {
        let (rules, placeholders) = (Arc::new(rules), provision.placeholders.clone());
        let (credentials, known_secrets) = (provision.credentials.clone(), provision.known_secrets.clone());
        let search = Arc::new(build(&credentials, &known_secrets, &rules, &placeholders)?);
        let values =
            RwLock::new(Values { credentials, replaced: ReplacedValues::default(), known_secrets, search });
        Ok(Self { values, rules, placeholders })
    }

    /// Whether the search has user-defined rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.count() > 0
    }

    /// The search for the next push.
    pub(crate) fn current(&self) -> Arc<Search> {
        Arc::clone(&self.values.read().unwrap_or_else(PoisonError::into_inner).search)
    }

    /// Adds credentials to the search.
    ///
    /// # Errors
    /// [`TooLarge`] if the secrets exceed the limits of the search. The search is then unchanged.
    pub(crate) fn add(&self, credentials: &BTreeMap<String, SecretText>) -> Result<(), TooLarge> {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        let mut replaced = values.replaced.clone();
        replaced.add(credentials);
        let all: Vec<SecretText> = values.credentials.iter().chain(replaced.values()).cloned().collect();
        values.search = Arc::new(build(&all, &values.known_secrets, &self.rules, &self.placeholders)?);
        values.replaced = replaced;
        Ok(())
    }
}

fn build(
    credentials: &[SecretText],
    known_secrets: &[SecretText],
    rules: &Arc<RuleFiles>,
    placeholders: &[String],
) -> Result<Search, TooLarge> {
    let secrets: Vec<_> = credentials.iter().chain(known_secrets).map(|secret| &secret.0).collect();
    let known = KnownSecrets::new(secrets.iter().copied())?;
    Ok(Search {
        scanner: Scanner::outbound(Arc::new(known))
            .with_rules(Arc::clone(rules))
            .with_placeholders(placeholders),
        credential_count: credentials.len(),
        redactor: Redactor::new(secrets)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_for_old_and_new_credentials() {
        let provision = GateProvision {
            slug: "one".parse().expect("slug"),
            repos: Vec::new(),
            credentials: vec!["first-Xk3v9QpL2wZr".into()],
            known_secrets: vec!["agents-Yt7n4BsM8cHd".into()],
            rules: Vec::new(),
            placeholders: Vec::new(),
            upstream_roots: String::new(),
            ask_seconds: None,
        };
        let searches = Searches::new(&provision, RuleFiles::parse([]).expect("rules")).expect("searches");
        let before = searches.current();
        let values = BTreeMap::from([("a.example".to_owned(), "second-Jw6m1RfG5xVe".into())]);
        searches.add(&values).expect("added");
        searches.add(&values).expect("added");
        let found = |search: &Search, text: &str| {
            let report = search.scanner.scan(text.as_bytes());
            report.findings.first().and_then(|finding| finding.secret)
        };
        for (text, old, new) in [
            ("first-Xk3v9QpL2wZr", Some(0), Some(0)),
            ("second-Jw6m1RfG5xVe", None, Some(1)),
            ("agents-Yt7n4BsM8cHd", Some(1), Some(2)),
        ] {
            let after = searches.current();
            assert_eq!((found(&before, text), found(&after, text)), (old, new), "{text}");
            assert_eq!(after.redact(text), "[redacted]");
        }
        assert_eq!(searches.current().credential_count, 2, "a hit on the agent's secret does not count");
    }
}
