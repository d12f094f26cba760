//! Leases must never exceed a limit. They must neither lose a token nor count a token twice, even if messages are lost
//! or repeated.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bottle_host::budget::{Declared, Limit, Scope, Window};
use bottle_instance::usage::Labels;
use bottle_manifest::agent_provider::Template;
use bottle_policy::names::Slug;
use bottle_protocol::session::lease::{BudgetKey, LeaseRequest};
use jiff::{Timestamp, Zoned};

use super::{LeaseGrant, Ledger, Lessee, Shortage, Standing};

/// A bottle that requests leases in the test.
struct Bottle {
    slug: Slug,
    labels: Labels,
}

impl Bottle {
    fn new(name: &str) -> Self {
        let labels = Labels {
            agent: "worker".to_owned(),
            run: Some(format!("run-of-{name}")),
            template: Some(Template::Claude),
            ..Labels::default()
        };
        Self { slug: name.parse().expect("slug"), labels }
    }

    fn lessee(&self) -> Lessee<'_> {
        Lessee { slug: &self.slug, labels: &self.labels, key: "claude" }
    }

    /// Appends the usage record of a response.
    fn respond(&self, home: &Path, id: u64, tokens: u64) {
        let run = self.labels.run.as_deref().expect("a run");
        let line = format!(
            "{{\"agent\":\"worker\",\"run\":\"{run}\",\"template\":\"claude\",\"id\":\"{id:032x}\",\
             \"time\":\"{}\",\"provider\":\"x\",\"host\":\"h.example\",\"api\":\"messages\",\"input\":{tokens},\
             \"output\":0,\"interrupted\":false,\"provider_route\":true}}\n",
            Timestamp::now()
        );
        let path = home.join("usage").join(format!("{}.jsonl", self.slug));
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("open");
        file.write_all(line.as_bytes()).expect("append");
    }
}

fn home() -> tempfile::TempDir {
    // The home is in memory if possible, because the tests write thousands of grants to the home's file system.
    let memory = Path::new("/dev/shm");
    let home = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let home = home.expect("home");
    fs::create_dir(home.path().join("usage")).expect("directory");
    home
}

fn total(scope: &str, tokens: u64) -> Declared {
    let limit = Limit { key: "claude".to_owned(), window: Window::Total, tokens };
    Declared { scope: Scope::parse(scope).expect("scope"), limit, origin: "settings.yml:1".to_owned() }
}

fn asks(granted: u64, needed: u64) -> LeaseRequest {
    LeaseRequest { key: BudgetKey::Provider, granted, returned: 0, in_progress: 0, needed: Some(needed) }
}

fn granted(grant: LeaseGrant) -> u64 {
    match grant {
        LeaseGrant::Granted(granted) => granted,
        LeaseGrant::Short(shortage) => panic!("{shortage:?}"),
    }
}

fn short(grant: LeaseGrant) -> Shortage {
    match grant {
        LeaseGrant::Short(shortage) => shortage,
        LeaseGrant::Granted(granted) => panic!("granted {granted}"),
    }
}

#[test]
fn grants_what_every_limit_has_left() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (one, two) = (Bottle::new("one"), Bottle::new("two"));
    let (agent, ceiling) = (total("agent:worker", 800), total("ceiling", 1000));
    let limits = [&agent, &ceiling];
    let now = Zoned::now();
    // The 100 requested tokens, and an eighth of the tokens that then remain of the narrower limit.
    assert_eq!(granted(ledger.lease(one.lessee(), &limits, &asks(0, 100), &now).expect("lease")), 187);
    assert_eq!(granted(ledger.lease(two.lessee(), &limits, &asks(0, 600), &now).expect("lease")), 601);
    let rest = short(ledger.lease(two.lessee(), &limits, &asks(601, 13), &now).expect("lease"));
    assert_eq!(rest.standing, Standing { spent: 0, reserved: 788, limit: 800 });
    assert_eq!((rest.declared, rest.needed, rest.may_pass), (agent.clone(), 614, true));
    assert_eq!(granted(ledger.lease(two.lessee(), &limits, &asks(601, 12), &now).expect("lease")), 613);
    // The bottle's own unused tokens and the unused tokens of the other bottle are not sufficient.
    let never = short(ledger.lease(one.lessee(), &limits, &asks(187, 614), &now).expect("lease"));
    assert_eq!((never.needed, never.may_pass), (801, false));
    ledger.top_up(&agent, None, 200, "me").expect("top up");
    assert_eq!(granted(ledger.lease(one.lessee(), &limits, &asks(187, 200), &now).expect("lease")), 387);
    let over = short(ledger.lease(one.lessee(), &limits, &asks(387, 1), &now).expect("lease"));
    assert_eq!(over.declared, agent, "the first limit that has too little");
}

#[test]
fn a_spent_limit_of_one_launch_has_the_name_with_which_it_can_be_raised() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (one, now) = (Bottle::new("one"), Zoned::now());
    let mut limit = total("bottle:box", 10);
    limit.limit.window = Window::Run;
    let spent = short(ledger.lease(one.lessee(), &[&limit], &asks(0, 11), &now).expect("lease"));
    assert_eq!(spent.declared.scope, Scope::Run(one.slug.clone()));
    ledger.top_up(&spent.declared, one.labels.run.as_deref(), 1, "me").expect("top up");
    assert_eq!(granted(ledger.lease(one.lessee(), &[&limit], &asks(0, 11), &now).expect("lease")), 11);
}

#[test]
fn a_limit_for_each_minute_is_free_again_after_a_minute() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (one, now) = (Bottle::new("one"), Zoned::now());
    let mut limit = total("host", 100);
    limit.limit.window = Window::Minute;
    let first = granted(ledger.lease(one.lessee(), &[&limit], &asks(0, 80), &now).expect("lease"));
    one.respond(home.path(), 1, 80);
    ledger.ingest(home.path()).expect("ingest");
    let wait = short(ledger.lease(one.lessee(), &[&limit], &asks(first, 30), &now).expect("lease"));
    assert!(wait.may_pass, "{wait:?}");
    let never = short(ledger.lease(one.lessee(), &[&limit], &asks(first, 101), &now).expect("lease"));
    assert!(!never.may_pass, "{never:?}");
    let later = now.checked_add(jiff::SignedDuration::from_secs(61)).expect("a time");
    let lease = ledger.lease(one.lessee(), &[&limit], &asks(first, 30), &later).expect("lease");
    assert!(granted(lease) > first);
}

#[test]
fn a_clock_that_crosses_midnight_and_returns_grants_no_more() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (one, now) = (Bottle::new("one"), Zoned::now());
    let tomorrow = now.checked_add(jiff::Span::new().days(1)).expect("a time");
    let mut limit = total("host", 1000);
    limit.limit.window = Window::Day;
    let today = granted(ledger.lease(one.lessee(), &[&limit], &asks(0, 100), &now).expect("lease"));
    one.respond(home.path(), 1, today);
    ledger.ingest(home.path()).expect("ingest");
    // The next day has its own 1000 tokens.
    let all = granted(ledger.lease(one.lessee(), &[&limit], &asks(today, 900), &tomorrow).expect("lease"));
    assert!(all >= today + 900, "{all}");
    let standing = ledger.standing(&limit, None, &tomorrow).expect("standing");
    assert_eq!((standing.spent, standing.reserved), (0, all - today));
    // The clock is set back. The tokens that were spent on the first day and the reserved tokens both count against the
    // limit of this day.
    let back = short(ledger.lease(one.lessee(), &[&limit], &asks(all, 1), &now).expect("lease"));
    assert_eq!((back.standing.spent, back.standing.reserved), (today, all - today));
    let most = 1000 - (all - today);
    let rest = ledger.lease(one.lessee(), &[&limit], &asks(all, most), &tomorrow).expect("lease");
    assert_eq!(granted(rest), today + 1000);
}

#[test]
fn a_lost_or_repeated_message_changes_nothing() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (one, limit, now) = (Bottle::new("one"), total("host", 1000), Zoned::now());
    let mut lease =
        |request: &LeaseRequest| ledger.lease(one.lessee(), &[&limit], request, &now).expect("lease");
    let first = granted(lease(&asks(0, 100)));
    assert_eq!(granted(lease(&asks(0, 100))), first, "the answer was lost");
    assert_eq!(granted(lease(&asks(0, first))), first, "and the proxy now needs all of it");
    let returns = LeaseRequest { returned: 150, needed: None, ..asks(first, 0) };
    for _ in 0..3 {
        assert_eq!(granted(lease(&returns)), first);
    }
    let standing = ledger.standing(&limit, None, &now).expect("standing");
    assert_eq!(standing, Standing { spent: 0, reserved: first - 150, limit: 1000 });
}

#[test]
fn an_ingested_response_is_taken_from_the_lease() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (one, limit, now) = (Bottle::new("one"), total("host", 1000), Zoned::now());
    let first = granted(ledger.lease(one.lessee(), &[&limit], &asks(0, 400), &now).expect("lease"));
    let standing = |ledger: &Ledger| ledger.standing(&limit, None, &now).expect("standing");
    for (id, tokens, spent, reserved) in
        [(1, 150, 150, first - 150), (1, 150, 150, first - 150), (2, 900, 1050, 0)]
    {
        one.respond(home.path(), id, tokens);
        // Any process may ingest the usage record.
        Ledger::open(home.path()).expect("ledger").ingest(home.path()).expect("ingest");
        assert_eq!(standing(&ledger), Standing { spent, reserved, limit: 1000 });
    }
    let spent = short(ledger.lease(one.lessee(), &[&limit], &asks(first, 1), &now).expect("lease"));
    assert!(!spent.may_pass);
    // A response of a launch without a lease does not use reserved tokens of other launches.
    Bottle::new("two").respond(home.path(), 3, 5);
    ledger.ingest(home.path()).expect("ingest");
    assert_eq!(standing(&ledger).spent, 1055);
}

#[test]
fn a_launch_that_ended_gives_its_lease_back() {
    let home = home();
    let mut ledger = Ledger::open(home.path()).expect("ledger");
    let (limit, now) = (total("host", 1000), Zoned::now());
    let bottles = ["one", "two", "three"].map(Bottle::new);
    for bottle in &bottles {
        granted(ledger.lease(bottle.lessee(), &[&limit], &asks(0, 100), &now).expect("lease"));
    }
    let reserved = |ledger: &Ledger| ledger.standing(&limit, None, &now).expect("standing").reserved;
    let all = reserved(&ledger);
    ledger.end_other_leases(|| None).expect("unknown");
    assert_eq!(reserved(&ledger), all);
    ledger.end_leases("run-of-one").expect("ended");
    let two = reserved(&ledger);
    assert!(two < all);
    ledger.end_other_leases(|| Some(["run-of-three".to_owned()].into())).expect("ended");
    assert!(reserved(&ledger) < two && reserved(&ledger) >= 100);
}

/// Eight bottles together need more tokens than a limit has. A database trigger checks the sum of spent and reserved
/// tokens at each grant.
#[test]
fn bottles_that_race_for_a_limit_never_exceed_it_together() {
    const LIMIT: u64 = 300_000;
    const REQUESTS: u64 = 10_000;
    const NEEDED: u64 = 50;
    let home = home();
    let ledger = Ledger::open(home.path()).expect("ledger");
    let check = |event: &str, grants: &str| {
        format!(
            "CREATE TRIGGER no_excess_{event} AFTER {event} ON leases WHEN {grants} BEGIN
               SELECT RAISE(ABORT, 'over the limit') WHERE {LIMIT} <
                 (SELECT coalesce(sum(reserved), 0) FROM leases) + (SELECT coalesce(sum(input), 0) FROM sums);
             END;"
        )
    };
    let triggers = check("UPDATE", "new.reserved > old.reserved") + &check("INSERT", "new.reserved > 0");
    ledger.connection().execute_batch(&triggers).expect("triggers");
    let (left, excess, served) = (AtomicU64::new(REQUESTS), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..8_u64 {
            let (home, left, excess, served) = (home.path(), &left, &excess, &served);
            scope.spawn(move || {
                let bottle = Bottle::new(&format!("bottle-{number}"));
                let mut ledger = Ledger::open(home).expect("ledger");
                let (limit, now) = (total("host", LIMIT), Zoned::now());
                let (mut seen, mut unused) = (0, 0_u64);
                let take = |left: u64| left.checked_sub(1);
                while let Ok(id) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                    if unused < NEEDED {
                        let request = asks(seen, NEEDED - unused);
                        let grant = ledger.lease(bottle.lessee(), &[&limit], &request, &now).expect("lease");
                        let LeaseGrant::Granted(granted) = grant else { break };
                        unused += granted - seen;
                        seen = granted;
                    }
                    // Some responses use more than their reservation.
                    let used = 20 + id % 37;
                    excess.fetch_add(used.saturating_sub(NEEDED), Ordering::Relaxed);
                    unused = (unused - NEEDED) + NEEDED.saturating_sub(used);
                    served.fetch_add(1, Ordering::Relaxed);
                    bottle.respond(home, id, used);
                    if id % 16 == 0 {
                        ledger.ingest_bottle(home, &bottle.slug).expect("ingest");
                    }
                }
            });
        }
    });
    let mut ledger = ledger;
    ledger.ingest(home.path()).expect("ingest");
    let standing = ledger.standing(&total("host", LIMIT), None, &Zoned::now()).expect("standing");
    let excess = excess.into_inner();
    assert!(standing.spent <= LIMIT + excess, "{standing:?} with an excess of {excess}");
    let served = served.into_inner();
    assert!(
        served > 6000 && served < REQUESTS,
        "{served} requests were served, and then the limit was spent"
    );
}
