//! Messages between the keeper process and the egress proxy about leases on budgets.
//!
//! A lease is a number of tokens that the ledger has reserved for a bottle. The proxy reserves tokens of its lease for
//! each request to a model before it sends the request. If the lease is too small, the proxy asks for more, and the
//! request waits.
//!
//! Both sides send totals since the launch, so a message that is lost, repeated or answered by another keeper changes
//! nothing. [`LeaseRequest::granted`] is the total that the proxy received, and [`LeaseAnswer::Granted`] contains the
//! total that the ledger granted. The difference is the number of tokens that the proxy gains.

use serde::{Deserialize, Serialize};

use bottle_policy::decide::Reason;

/// What a budget limits: the bottle's provider route, or the host of another route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BudgetKey {
    /// The bottle's provider routes. The message does not name the provider, because the keeper knows the agent's
    /// template.
    Provider,
    /// A host, in canonical form.
    Host(String),
}

/// The state of the proxy's lease for one key, and the tokens that the proxy needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// The provider or host that the tokens are for.
    pub key: BudgetKey,
    /// The tokens that the proxy has received since the launch.
    pub granted: u64,
    /// The tokens that the proxy has given back unused since the launch.
    pub returned: u64,
    /// The tokens that requests in progress have reserved. The rest of the lease is unused.
    pub in_progress: u64,
    /// The tokens that the proxy needs in addition. With 0, the proxy asks only whether a budget limits the key. With
    /// `None`, the proxy gives tokens back, and the keeper does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed: Option<u64>,
}

/// The keeper's answer to a [`LeaseRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "lease", rename_all = "kebab-case", deny_unknown_fields)]
pub enum LeaseAnswer {
    /// The ledger has reserved the tokens.
    Granted {
        /// The key of the request.
        key: BudgetKey,
        /// The tokens that the ledger has granted since the launch.
        granted: u64,
    },
    /// No budget limits the key.
    Unlimited {
        /// The key of the request.
        key: BudgetKey,
    },
    /// The waiting requests of the key are denied.
    Denied {
        /// The key of the request.
        key: BudgetKey,
        /// The reason: [`Reason::BudgetSpent`] or [`Reason::BudgetUnknown`].
        reason: Reason,
        /// The cause, as a sentence fragment for the agent and the user.
        why: String,
    },
    /// The proxy must give back the tokens that no request has reserved, and ask again before each request. The
    /// keeper sends this answer without a [`LeaseRequest`].
    Revoked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let request = LeaseRequest {
            key: BudgetKey::Host("llm.example.com".to_owned()),
            granted: 5,
            returned: 0,
            in_progress: 3,
            needed: Some(0),
        };
        let text = serde_json::to_string(&request).expect("text");
        insta::assert_snapshot!(text, @r#"{"key":{"host":"llm.example.com"},"granted":5,"returned":0,"in_progress":3,"needed":0}"#);
        assert_eq!(serde_json::from_str::<LeaseRequest>(&text).expect("a request"), request);
        let answer = LeaseAnswer::Granted { key: BudgetKey::Provider, granted: 7 };
        let text = serde_json::to_string(&answer).expect("text");
        insta::assert_snapshot!(text, @r#"{"lease":"granted","key":"provider","granted":7}"#);
        assert_eq!(serde_json::from_str::<LeaseAnswer>(&text).expect("an answer"), answer);
    }
}
