//! How the user stopped a bottle's requests to models. This module is pure.

use bottle_host::budget::OnSpent;
use bottle_policy::names::Slug;

use crate::protocol::BudgetChange;

/// Whether and how the user stopped the requests with `bottle budget stop`. `bottle budget continue` allows the
/// requests again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The requests are not stopped.
    #[default]
    No,
    /// The requests wait, and the bottle is paused.
    Paused,
    /// The requests are denied.
    CutOff,
}

/// The effect of a [`BudgetChange`] by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The requests are stopped in this way, and the bottle's record stores this policy.
    Stopped(Stopped, Option<OnSpent>),
    /// The bottle is frozen or killed.
    Ends(OnSpent),
}

impl Stopped {
    /// Returns the state for the policy that a bottle's record stores.
    pub(crate) fn recorded(policy: Option<OnSpent>) -> Self {
        match policy {
            Some(OnSpent::Pause) => Self::Paused,
            Some(OnSpent::Cutoff) => Self::CutOff,
            // With `freeze` and `kill`, the bottle is already ending.
            Some(OnSpent::Freeze | OnSpent::Kill) | None => Self::No,
        }
    }

    /// Describes why the bottle must be paused, as a clause for a message. `question` is the cause of the question that
    /// waits for the user's answer. Returns `None` if the bottle must not be paused.
    pub(super) fn hold(self, slug: &Slug, question: Option<String>) -> Option<String> {
        match self {
            Self::Paused => Some(format!("by the user; `bottle budget continue {slug}` lets it go on")),
            Self::No | Self::CutOff => question,
        }
    }
}

impl Effect {
    pub(crate) fn of(change: BudgetChange) -> Self {
        let policy = match change {
            BudgetChange::Continue => None,
            BudgetChange::Stop(policy @ (OnSpent::Freeze | OnSpent::Kill)) => return Self::Ends(policy),
            BudgetChange::Stop(policy @ (OnSpent::Pause | OnSpent::Cutoff)) => Some(policy),
        };
        Self::Stopped(Stopped::recorded(policy), policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_the_user_has_an_effect() {
        use BudgetChange::{Continue, Stop};
        for (change, wanted) in [
            (Continue, Effect::Stopped(Stopped::No, None)),
            (Stop(OnSpent::Pause), Effect::Stopped(Stopped::Paused, Some(OnSpent::Pause))),
            (Stop(OnSpent::Cutoff), Effect::Stopped(Stopped::CutOff, Some(OnSpent::Cutoff))),
            (Stop(OnSpent::Freeze), Effect::Ends(OnSpent::Freeze)),
            (Stop(OnSpent::Kill), Effect::Ends(OnSpent::Kill)),
        ] {
            assert_eq!(Effect::of(change), wanted, "{change:?}");
        }
        assert_eq!(Stopped::recorded(Some(OnSpent::Kill)), Stopped::No, "it ends already");
    }

    #[test]
    fn a_bottle_is_paused_by_the_user_before_it_is_by_a_question() {
        let slug: Slug = "demo".parse().expect("a slug");
        let by_user = "by the user; `bottle budget continue demo` lets it go on";
        for (stopped, question, wanted) in [
            (Stopped::No, None, None),
            (Stopped::No, Some("spent"), Some("spent")),
            (Stopped::CutOff, None, None),
            (Stopped::Paused, None, Some(by_user)),
            (Stopped::Paused, Some("spent"), Some(by_user)),
        ] {
            let found = stopped.hold(&slug, question.map(str::to_owned));
            assert_eq!(found.as_deref(), wanted, "{stopped:?} {question:?}");
        }
    }
}
