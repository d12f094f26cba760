//! How the user stopped a bottle's requests to models. Pure.

use bottle_host::budget::Policy;

use crate::protocol::BudgetOrder;

/// How the user stopped them with `bottle budget stop`, until `bottle budget continue`.
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

/// What a change of the user leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Requests are stopped like this, and the bottle's record says so with this policy.
    Stopped(Stopped, Option<Policy>),
    /// The bottle is frozen or killed.
    Ends(Policy),
}

impl Stopped {
    /// What a bottle's record says.
    pub(crate) fn recorded(policy: Option<Policy>) -> Self {
        match policy {
            Some(Policy::Pause) => Self::Paused,
            Some(Policy::Cutoff) => Self::CutOff,
            // The bottle ends already.
            Some(Policy::Freeze | Policy::Kill) | None => Self::No,
        }
    }
}

impl Effect {
    pub(crate) fn of(change: BudgetOrder) -> Self {
        let policy = match change {
            BudgetOrder::Continue => None,
            BudgetOrder::Stop(policy @ (Policy::Freeze | Policy::Kill)) => return Self::Ends(policy),
            BudgetOrder::Stop(policy @ (Policy::Pause | Policy::Cutoff)) => Some(policy),
        };
        Self::Stopped(Stopped::recorded(policy), policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_the_user_has_an_effect() {
        use BudgetOrder::{Continue, Stop};
        for (change, wanted) in [
            (Continue, Effect::Stopped(Stopped::No, None)),
            (Stop(Policy::Pause), Effect::Stopped(Stopped::Paused, Some(Policy::Pause))),
            (Stop(Policy::Cutoff), Effect::Stopped(Stopped::CutOff, Some(Policy::Cutoff))),
            (Stop(Policy::Freeze), Effect::Ends(Policy::Freeze)),
            (Stop(Policy::Kill), Effect::Ends(Policy::Kill)),
        ] {
            assert_eq!(Effect::of(change), wanted, "{change:?}");
        }
        assert_eq!(Stopped::recorded(Some(Policy::Kill)), Stopped::No, "it ends already");
    }
}
