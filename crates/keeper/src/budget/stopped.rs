//! How the user stopped a bottle's requests to models. Pure.

use bottle_host::budget::OnSpent;
use bottle_policy::names::Slug;

use crate::protocol::BudgetChange;

/// How the user stopped the requests with `bottle budget stop`, until `bottle budget continue`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// They are not stopped.
    #[default]
    No,
    /// They wait, and the bottle is paused.
    Paused,
    /// They are denied.
    CutOff,
}

/// The effect of a change by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Requests are stopped like this, and the bottle's record stores this policy.
    Stopped(Stopped, Option<OnSpent>),
    /// The bottle is frozen or killed.
    Ends(OnSpent),
}

impl Stopped {
    /// The state that corresponds to the policy in a bottle's record.
    pub(crate) fn recorded(policy: Option<OnSpent>) -> Self {
        match policy {
            Some(OnSpent::Pause) => Self::Paused,
            Some(OnSpent::Cutoff) => Self::CutOff,
            // The bottle is already ending.
            Some(OnSpent::Freeze | OnSpent::Kill) | None => Self::No,
        }
    }

    /// Why the bottle is paused, as a fragment. `question` is the cause of the question that waits for the user. `None` if
    /// the bottle is not paused.
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
