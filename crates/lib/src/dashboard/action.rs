//! The actions of the two dashboards. Both dashboards ask the user once before they carry out an action.

use std::time::Duration;

use crate::budget;
use crate::discard::discard;
use crate::stop::stop;
use bottle_host::Host;
use bottle_host::account;
use bottle_host::budget::{Declared, OnSpent};
use bottle_keeper::ledger::Ledger;
use bottle_keeper::protocol::{BudgetChange, Ended, Resumable};
use bottle_policy::names::Slug;

use super::model::Bottle;
use super::words;
use crate::failure::Failure;

/// The grace period for an agent to end before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// An action of the user on a bottle or a budget.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ends the bottle. Its unsaved work is kept.
    Stop {
        /// The slug of the bottle.
        slug: Slug,
    },
    /// Stops a bottle's requests to models, or the bottle itself, as if a budget were spent. `BudgetChange::Continue`
    /// lets the bottle continue.
    Order {
        /// The slug of the bottle.
        slug: Slug,
        /// What to do with the bottle.
        order: BudgetChange,
    },
    /// Deletes the kept files of a bottle.
    Discard {
        /// The slug of the bottle.
        slug: Slug,
    },
    /// Raises a budget in its current window.
    Raise {
        /// The budget.
        declared: Declared,
        /// The launch, if the budget counts only one launch.
        run: Option<String>,
        /// The tokens to add.
        tokens: u64,
        /// The limit before the raise.
        limit: u64,
    },
}

/// Returns the actions that suit the state of a bottle. Actions that delete work are last.
pub fn actions_for(bottle: &Bottle) -> Vec<Action> {
    let slug = || bottle.slug.clone();
    let order = |order| Action::Order { slug: slug(), order };
    let stop = |policy| order(BudgetChange::Stop(policy));
    if bottle.can_discard() {
        return vec![Action::Discard { slug: slug() }];
    }
    if !bottle.can_stop() {
        return Vec::new();
    }
    let mut actions = Vec::new();
    if bottle.paused.is_some() || bottle.cut_off {
        actions.push(order(BudgetChange::Continue));
    }
    if bottle.paused.is_none() {
        actions.push(stop(OnSpent::Pause));
    }
    if !bottle.cut_off {
        actions.push(stop(OnSpent::Cutoff));
    }
    actions.extend([stop(OnSpent::Freeze), Action::Stop { slug: slug() }, stop(OnSpent::Kill)]);
    actions
}

impl Action {
    /// The name of the action in a URL.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stop { .. } => "stop",
            Self::Order { order: BudgetChange::Continue, .. } => "continue",
            Self::Order { order: BudgetChange::Stop(policy), .. } => policy.name(),
            Self::Discard { .. } => "discard",
            Self::Raise { .. } => "raise",
        }
    }

    /// The question that the user confirms.
    pub fn question(&self) -> String {
        match self {
            Self::Stop { slug } => format!("Stop {slug}?"),
            Self::Order { slug, order } => format!("{} {slug}?", order_verb(*order)),
            Self::Discard { slug } => format!("Discard {slug}?"),
            Self::Raise { declared, .. } => format!("Raise the budget of {}?", words::budget(declared)),
        }
    }

    /// What the action does, in a sentence.
    pub fn effect(&self) -> String {
        match self {
            Self::Stop { .. } => {
                format!("Its agent has {} s to end. Unsaved work is kept.", GRACE.as_secs())
            }
            Self::Order { order, .. } => order_effect(*order).to_owned(),
            Self::Discard { .. } => {
                "This deletes all work in it that was not pulled or pushed. It cannot be undone.".to_owned()
            }
            Self::Raise { tokens, limit, .. } => format!(
                "{} tokens more: the limit becomes {}, in its current window.",
                words::grouped(*tokens),
                words::grouped(limit.saturating_add(*tokens))
            ),
        }
    }

    /// Whether the action deletes work that cannot be restored.
    pub fn is_destructive(&self) -> bool {
        matches!(self, Self::Discard { .. } | Self::Order { order: BudgetChange::Stop(OnSpent::Kill), .. })
    }

    /// The label of the button that confirms the action.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Stop { .. } => "Stop",
            Self::Order { order, .. } => order_verb(*order),
            Self::Discard { .. } => "Discard",
            Self::Raise { .. } => "Raise",
        }
    }

    /// The text to show while the action runs.
    pub fn doing(&self) -> String {
        match self {
            Self::Stop { slug } => format!("stopping {slug}"),
            Self::Order { slug, order } => match order {
                BudgetChange::Continue => format!("letting {slug} go on"),
                BudgetChange::Stop(policy) => format!("{slug}: {policy}"),
            },
            Self::Discard { slug } => format!("discarding {slug}"),
            Self::Raise { declared, .. } => format!("raising {}", words::budget(declared)),
        }
    }

    /// Carries out the action, and waits for its end. Returns the result in words.
    ///
    /// # Errors
    /// Returns an error if the action fails. A failed action may be partly done.
    pub async fn carry_out(&self, host: &Host) -> Result<String, Failure> {
        match self {
            Self::Stop { slug } => {
                let ended = stop(host, slug, GRACE, |_| {}).await?;
                Ok(end_words(slug, &ended))
            }
            Self::Order { slug, order: order @ BudgetChange::Stop(OnSpent::Freeze | OnSpent::Kill) } => {
                let ended = budget::end(host, slug, *order).await?;
                Ok(end_words(slug, &ended))
            }
            Self::Order { slug, order } => {
                budget::send(host, slug, *order).await?;
                Ok(match order {
                    BudgetChange::Stop(OnSpent::Pause) => format!("{slug} is paused"),
                    BudgetChange::Stop(_) => format!("{slug} runs on, and its requests to models are denied"),
                    BudgetChange::Continue => format!("{slug} goes on, as far as its budgets allow"),
                })
            }
            Self::Discard { slug } => {
                let snapshot = discard(host, slug).await?;
                let rest = if snapshot { "; its snapshot remains" } else { "" };
                Ok(format!("{slug} was deleted{rest}"))
            }
            Self::Raise { declared, run, tokens, limit } => {
                let mut ledger = Ledger::open(&host.home)?;
                ledger.top_up(declared, run.as_deref(), *tokens, &account::own_name())?;
                let limit = words::grouped(limit.saturating_add(*tokens));
                Ok(format!("{}: the limit is now {limit} tokens", words::budget(declared)))
            }
        }
    }
}

fn order_verb(order: BudgetChange) -> &'static str {
    match order {
        BudgetChange::Stop(OnSpent::Pause) => "Pause",
        BudgetChange::Stop(OnSpent::Cutoff) => "Cut off",
        BudgetChange::Stop(OnSpent::Freeze) => "Freeze",
        BudgetChange::Stop(OnSpent::Kill) => "Kill",
        BudgetChange::Continue => "Continue",
    }
}

fn order_effect(order: BudgetChange) -> &'static str {
    match order {
        BudgetChange::Stop(OnSpent::Pause) => {
            "Its programs stand still, and its requests to models wait, until it continues."
        }
        BudgetChange::Stop(OnSpent::Cutoff) => {
            "It runs on, and its requests to models are denied until it continues."
        }
        BudgetChange::Stop(OnSpent::Freeze) => "A snapshot is saved, and the bottle ends. It can be resumed.",
        BudgetChange::Stop(OnSpent::Kill) => {
            "This deletes all work in it that was not pulled or pushed. It cannot be undone."
        }
        BudgetChange::Continue => {
            "Its programs and its requests to models go on, as far as its budgets allow."
        }
    }
}

/// Describes how a bottle ended.
fn end_words(slug: &Slug, ended: &Ended) -> String {
    let kept = match ended.resumable {
        Some(Resumable::Kept) => format!("; its files are kept: `bottle resume {slug}`"),
        Some(Resumable::Conversation) => format!("; `bottle resume {slug}` continues its conversation"),
        Some(Resumable::Snapshot) => format!("; `bottle resume {slug}` starts from its snapshot"),
        None => String::new(),
    };
    let left = if ended.left.is_empty() { "" } else { "; `bottle cleanup` removes what is left of it" };
    format!("{slug} has ended{kept}{left}")
}

#[cfg(test)]
mod tests {
    use bottle_host::budget::Window;

    use super::*;
    use crate::dashboard::model::BottleState;
    use crate::dashboard::sample::{bottle, declared};

    #[test]
    fn actions_suit_the_state_and_the_destructive_ones_are_last() {
        let plain = bottle("one", BottleState::Running, "running");
        let paused = Bottle { paused: Some("spent".to_owned()), ..plain.clone() };
        let cut_off = Bottle { cut_off: true, ..plain.clone() };
        let both = Bottle { cut_off: true, ..paused.clone() };
        for (bottle, names) in [
            (plain, "pause cutoff freeze stop kill"),
            (paused, "continue cutoff freeze stop kill"),
            (cut_off, "continue pause freeze stop kill"),
            (both, "continue freeze stop kill"),
            (bottle("one", BottleState::Kept, "kept"), "discard"),
            (bottle("one", BottleState::Snapshot, "kept"), ""),
            (bottle("one", BottleState::Ended, "ended"), ""),
            (bottle("one", BottleState::Changing, "starting"), ""),
            (bottle("one", BottleState::Broken, "damaged"), ""),
        ] {
            let actions = actions_for(&bottle);
            let found: Vec<&str> = actions.iter().map(Action::name).collect();
            assert_eq!(found.join(" "), names);
            let destructive = actions.iter().filter(|action| action.is_destructive()).map(Action::name);
            assert!(destructive.eq(found.last().copied().filter(|name| matches!(*name, "kill" | "discard"))));
        }
    }

    #[test]
    fn a_question_says_what_is_done() {
        let raise = Action::Raise {
            declared: declared("bottle:dev", "claude", Window::Day, 5),
            run: None,
            tokens: 500_000,
            limit: 2_000_000,
        };
        assert_eq!(raise.question(), "Raise the budget of claude per day, manifest dev?");
        assert_eq!(
            raise.effect(),
            "500,000 tokens more: the limit becomes 2,500,000, in its current window."
        );
    }
}
