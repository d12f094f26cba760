//! `bottle budget`: shows how many tokens of each budget are spent, and raises budgets.

use bottle_host::account;
use bottle_host::budget::{self, Declared, Limit, OnSpent, Scope, Window, governing};
use bottle_host::{Host, Settings};
use bottle_instance::{State, Store};
use bottle_keeper::ledger::{Ledger, Standing};
use bottle_lib::report::BudgetLine;
use bottle_lib::usage::up_to_date;
use bottle_manifest::{Kind as ManifestKind, Place};
use bottle_policy::names::{Name, Slug};
use clap::Subcommand;
use indicatif::HumanCount;
use jiff::Zoned;

use super::budget_change;
use super::candidates;
use super::choice::{manifests, resolved};
use crate::console::error::{CliError, Kind};
use crate::console::exit;
use crate::console::output::{Output, number, one_line};

/// Show what is spent of each budget
///
/// Budgets are numbers of tokens: `budget` in `settings.yml` and in manifests, and the flag `--budget`. `bottle start`
/// refuses to start an agent whose budget is spent. If a budget is spent while a bottle runs, `cutoff` in
/// `settings.yml` decides what happens; by default, the bottle is paused and you are asked.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Budget {
    /// Show the budgets of this agent, and which of them govern it
    #[arg(long, add = candidates::agents())]
    agent: Option<Name>,
    /// Use this bottle manifest instead of the agent's default; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", requires = "agent", add = candidates::bottles())]
    bottles: Vec<Name>,
    /// Show the file and line of each budget
    #[arg(long)]
    explain: bool,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Raise a budget in its current window
    Add {
        /// The budget: host, ceiling, agent:NAME, bottle:NAME or run:SLUG
        #[arg(value_parser = Scope::parse)]
        scope: Scope,
        /// The number of tokens to add
        #[arg(value_parser = budget::parse_tokens)]
        tokens: u64,
        /// The provider, if the scope has budgets of several
        #[arg(long)]
        provider: Option<String>,
        /// The window, if the scope has budgets of several: run, minute, day, month or total
        #[arg(long, value_parser = window)]
        window: Option<Window>,
    },
    /// Stop a bottle's requests to models, or the bottle, as if a budget were spent
    Stop {
        /// The bottle, as `bottle list` shows it
        #[arg(add = candidates::running())]
        slug: Slug,
        /// What to do: `pause` it until `bottle budget continue`, `cutoff` its requests to models and let it run,
        /// `freeze` it (save a snapshot and stop), or `kill` it without saving anything
        #[arg(long, value_name = "pause|cutoff|freeze|kill", value_parser = OnSpent::parse)]
        policy: OnSpent,
        /// Kill without asking
        #[arg(short, long)]
        yes: bool,
    },
    /// Let a bottle go on that `bottle budget stop` paused or cut off
    Continue {
        /// The bottle, as `bottle list` shows it
        #[arg(add = candidates::running())]
        slug: Slug,
    },
}

fn window(text: &str) -> Result<Window, String> {
    Window::parse(text).ok_or_else(|| "write run, minute, day, month or total".to_owned())
}

/// A budget. If the budget counts the tokens of a single launch, `run` is this launch.
struct LaunchBudget {
    declared: Declared,
    run: Option<String>,
    governs: Option<bool>,
}

impl LaunchBudget {
    fn standing(&self, ledger: &Ledger, now: &Zoned) -> Result<Standing, CliError> {
        Ok(ledger.standing(&self.declared, self.run.as_deref(), now)?)
    }

    fn line(&self, ledger: &Ledger, now: &Zoned) -> Result<BudgetLine, CliError> {
        let standing = self.standing(ledger, now)?;
        let Declared { scope, limit, origin } = &self.declared;
        Ok(BudgetLine {
            scope: scope.to_string(),
            provider: limit.key.clone(),
            window: limit.window,
            spent: standing.spent,
            reserved: standing.reserved,
            limit: standing.limit,
            declared: limit.tokens,
            left: standing.left(),
            governs: self.governs,
            origin: origin.clone(),
        })
    }
}

impl Budget {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self.what {
            None => self.show(host, output),
            Some(What::Add { scope, tokens, provider, window }) => {
                add(host, output, &Wanted { scope, provider, window }, tokens)
            }
            Some(What::Stop { slug, policy, yes }) => budget_change::stop(host, output, &slug, policy, yes),
            Some(What::Continue { slug }) => budget_change::resume(host, output, &slug),
        }
    }

    fn show(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let accounts = match &self.agent {
            None => all(host, output)?,
            Some(agent) => of_agent(host, agent.clone(), self.bottles.clone())?,
        };
        let ledger = up_to_date(host, |text| output.warn(text))?;
        let now = Zoned::now();
        let lines: Vec<BudgetLine> =
            accounts.iter().map(|account| account.line(&ledger, &now)).collect::<Result<_, _>>()?;
        let mut heading = vec!["SCOPE", "PROVIDER", "WINDOW", "SPENT", "RESERVED", "LIMIT", "LEFT"];
        heading.extend(self.agent.is_some().then_some("GOVERNS"));
        heading.extend(self.explain.then_some("ORIGIN"));
        output.print_list(&lines, &heading, 0, |line| {
            let numbers = [line.spent, line.reserved, line.limit, line.left];
            let names = [line.scope.clone(), line.provider.clone(), line.window.to_string()];
            let mut row: Vec<String> = names.into_iter().chain(numbers.map(number)).collect();
            row.extend(line.governs.map(|governs| if governs { "yes" } else { "no" }.to_owned()));
            row.extend(self.explain.then(|| one_line(&line.origin)));
            row
        })?;
        if lines.is_empty() {
            output.note("there is no budget; `bottle help manifests` shows how to write one");
        }
        Ok(exit::DONE)
    }
}

/// Returns the budgets of all scopes: those of the settings, of the user's manifests, and of launches.
fn all(host: &Host, output: &Output) -> Result<Vec<LaunchBudget>, CliError> {
    let mut declared = Settings::load(host)?.budget;
    let manifests = manifests(host);
    for kind in [ManifestKind::Agent, ManifestKind::Bottle] {
        for entry in manifests.list(kind).entries {
            if let Err(error) = add_manifest(&manifests, kind, &entry.name, &mut declared) {
                output.warn(format!("{}; its budget is not shown", error.without_hint()));
            }
        }
    }
    let mut accounts: Vec<LaunchBudget> =
        declared.into_iter().map(|declared| LaunchBudget { declared, run: None, governs: None }).collect();
    let listed = Store::of(host).list().map_err(|error| CliError::from_error(Kind::Failed, &error))?;
    for bottle in listed {
        let (State::Alive(record) | State::Kept(record)) = bottle.state else { continue };
        let of_run = record.budget.into_iter().filter(|declared| declared.limit.window == Window::Run);
        accounts.extend(of_run.map(|declared| LaunchBudget {
            declared: declared.in_launch_of(&record.slug),
            run: record.run.clone(),
            governs: None,
        }));
    }
    Ok(accounts)
}

fn add_manifest(
    manifests: &bottle_manifest::Manifests,
    kind: ManifestKind,
    name: &Name,
    declared: &mut Vec<Declared>,
) -> Result<(), bottle_manifest::ManifestError> {
    let (scope, source, limits) = match kind {
        ManifestKind::Agent => {
            // An agent manifest of a project has no budget. If the user has an agent of the same name, the budget of
            // the user's agent applies.
            let Some(agent) = manifests.own_agent(name)? else { return Ok(()) };
            (Scope::Agent(name.clone()), agent.source, agent.budget)
        }
        ManifestKind::Bottle => {
            let Some(bottle) = manifests.bottle(name)? else { return Ok(()) };
            (Scope::Bottle(name.clone()), bottle.source, bottle.budget)
        }
    };
    debug_assert_ne!(source.place, Place::Project);
    declared.extend(limits.into_iter().map(|limit| Declared {
        scope: scope.clone(),
        origin: format!("{source}:{}", limit.at.line),
        limit: limit.value,
    }));
    Ok(())
}

/// Returns the budgets that apply to an agent in its bottles. The budgets of the manifests come first, and those of the
/// settings last.
fn of_agent(host: &Host, agent: Name, bottles: Vec<Name>) -> Result<Vec<LaunchBudget>, CliError> {
    let resolved = resolved(&manifests(host), agent, bottles)?;
    let mut declared = resolved.manifest.budget;
    declared.extend(Settings::load(host)?.budget);
    let governs: Vec<bool> = declared
        .iter()
        .map(|one| governing(&declared, &one.limit.key).iter().any(|governing| std::ptr::eq(*governing, one)))
        .collect();
    let accounts = declared.into_iter().zip(governs);
    Ok(accounts
        .map(|(declared, governs)| LaunchBudget { declared, run: None, governs: Some(governs) })
        .collect())
}

/// The budget that the user wants to raise.
struct Wanted {
    scope: Scope,
    provider: Option<String>,
    window: Option<Window>,
}

impl Wanted {
    fn is(&self, LaunchBudget { declared, run, .. }: &LaunchBudget) -> bool {
        let Limit { key, window, .. } = &declared.limit;
        declared.scope == self.scope
            // A budget with the window `run` counts the tokens of one launch, so only the budget of a given launch can
            // be raised.
            && (*window != Window::Run || run.is_some())
            && self.provider.as_ref().is_none_or(|provider| provider == key)
            && self.window.is_none_or(|wanted| wanted == *window)
    }
}

fn add(host: &Host, output: &Output, wanted: &Wanted, tokens: u64) -> Result<u8, CliError> {
    let accounts = all(host, output)?;
    let found: Vec<&LaunchBudget> = accounts.iter().filter(|account| wanted.is(account)).collect();
    let account = match found[..] {
        [account] => account,
        [] => {
            return Err(CliError::usage(format!("there is no such budget of {}", wanted.scope))
                .about(&wanted.scope)
                .hint("`bottle budget` shows all; a new one is a line in `settings.yml` or in a manifest"));
        }
        _ => {
            let names: Vec<String> = found
                .iter()
                .map(|account| &account.declared.limit)
                .map(|limit| format!("`--provider {} --window {}`", limit.key, limit.window))
                .collect();
            return Err(CliError::usage(format!("{} has several budgets", wanted.scope))
                .about(&wanted.scope)
                .hint(format!("add {}", names.join(" or "))));
        }
    };
    let mut ledger = up_to_date(host, |text| output.warn(text))?;
    ledger.top_up(&account.declared, account.run.as_deref(), tokens, &account::own_name())?;
    let line = account.line(&ledger, &Zoned::now())?;
    output.json_or(&line, || {
        let [limit, left] = [line.limit, line.left].map(HumanCount);
        output.print(&format!(
            "{} {} {}: the limit is now {limit} tokens, {left} left",
            line.scope, line.provider, line.window
        ))
    })?;
    Ok(exit::DONE)
}
