//! The spent and reserved tokens of a budget.

use bottle_host::budget::{ALL, Declared, Scope, Window};
use jiff::{Timestamp, Zoned};

use super::error::LedgerError;
use super::repository::{Ledger, Measured, Reader, TopUp};

/// The spent and reserved tokens of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// The tokens that responses have used.
    pub spent: u64,
    /// The tokens that leases reserve for requests without a response.
    pub reserved: u64,
    /// The declared limit plus the top-ups in the current window.
    pub limit: u64,
}

impl Standing {
    /// The number of tokens that can still be reserved.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.spent).saturating_sub(self.reserved)
    }

    /// Whether no tokens are left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left() == 0
    }
}

impl Ledger {
    /// Returns the spent and reserved tokens of a limit. `run` is the launch that a limit with [`Window::Run`] counts.
    /// Without a launch, no tokens of such a limit are spent. `now` determines the day and the month.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn standing(
        &self,
        declared: &Declared,
        run: Option<&str>,
        now: &Zoned,
    ) -> Result<Standing, LedgerError> {
        self.reader().standing(declared, run, now)
    }

    /// Raises a limit in the limit's current window. `who` is the name of the user who raises it.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be written.
    pub fn top_up(
        &mut self,
        declared: &Declared,
        run: Option<&str>,
        tokens: u64,
        who: &str,
    ) -> Result<(), LedgerError> {
        self.add_top_up(&account(declared, run), Timestamp::now(), tokens, who)
    }
}

impl Reader<'_> {
    /// Implements [`Ledger::standing`].
    pub(super) fn standing(
        &self,
        declared: &Declared,
        run: Option<&str>,
        now: &Zoned,
    ) -> Result<Standing, LedgerError> {
        let Declared { scope, limit, .. } = declared;
        let measured = match (limit.window, run) {
            (Window::Run, None) => {
                return Ok(Standing { limit: limit.tokens, ..Standing::default() });
            }
            (Window::Run, Some(run)) => Measured::Run(run.to_owned()),
            _ => Measured::from(scope),
        };
        let key = (limit.key != ALL).then_some(limit.key.as_str());
        let since = limit.window.start(now);
        let spent = match limit.window {
            Window::Minute => self.recently_spent(&measured, key, since)?,
            Window::Run | Window::Day | Window::Month | Window::Total => self.spent(&measured, key, since)?,
        };
        Ok(Standing {
            spent,
            reserved: self.reserved(&measured, key)?,
            limit: limit.tokens.saturating_add(self.topped_up(&account(declared, run), since)?),
        })
    }
}

/// Returns the account to which a top-up is added. For a limit with [`Window::Run`], the account is the launch and not
/// the manifest that declares the limit.
fn account(declared: &Declared, run: Option<&str>) -> TopUp {
    let Declared { scope, limit, .. } = declared;
    let scope = match (limit.window, run) {
        (Window::Run, Some(run)) => format!("run:{run}"),
        _ => scope.to_string(),
    };
    TopUp { scope, key: limit.key.clone(), period: limit.window.name() }
}

impl From<&Scope> for Measured {
    fn from(scope: &Scope) -> Self {
        match scope {
            Scope::Run(slug) => Self::Slug(slug.to_string()),
            Scope::Agent(name) => Self::Agent(name.to_string()),
            Scope::Bottle(name) => Self::Bottle(name.to_string()),
            Scope::Host | Scope::Ceiling => Self::All,
        }
    }
}
