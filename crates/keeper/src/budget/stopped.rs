//! How the user stopped a bottle's requests to models. Pure.

use bottle_host::budget::OnSpent;

use crate::protocol::BudgetChange;

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
    Stopped(Stopped, Option<OnSpent>),
    /// The bottle is frozen or killed.
    Ends(OnSpent),
}

impl Stopped {
    /// What a bottle's record says.
    pub(crate) fn recorded(policy: Option<OnSpent>) -> Self {
        match policy {
            Some(OnSpent::Pause) => Self::Paused,
            Some(OnSpent::Cutoff) => Self::CutOff,
            // The bottle ends already.
            Some(OnSpent::Freeze | OnSpent::Kill) | None => Self::No,
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
}
