//! Tests of the screen without a terminal: keys, events and drawing.

use bottle_keeper::ledger::GroupBy;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use dialoguer::console::measure_text_width;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw;
use super::state::{Effect, Overlay, State, View};
use crate::console::style::Styles;
use bottle_lib::dashboard::action::Action;
use bottle_lib::dashboard::gather::{Gathered, Wanted};
use bottle_lib::dashboard::model::{Bottle, BottleState, Period, Snapshot};
use bottle_lib::dashboard::sample::{bottle, detail, gathered, now, snapshot, usage};

const USUAL: (u16, u16) = (80, 24);
const ASCII: Styles = Styles { unicode: false, ..Styles::PLAIN };

fn key(letter: char) -> KeyEvent {
    let code = match letter {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\t' => KeyCode::Tab,
        letter => KeyCode::Char(letter),
    };
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// Presses keys, and returns the effect of the last one.
fn press(state: &mut State, keys: &str) -> Effect {
    keys.chars().map(|letter| state.press(key(letter))).last().unwrap_or(Effect::Nothing)
}

fn state() -> State {
    State::new(gathered())
}

fn with(bottles: Vec<Bottle>) -> State {
    State::new(Gathered { snapshot: Snapshot { bottles, ..snapshot() }, detail: None, usage: None })
}

fn drawn(state: &mut State, (columns, rows): (u16, u16), styles: Styles) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    let draw = |frame: &mut ratatui::Frame<'_>| {
        let (areas, lines) = draw::prepare(state, frame.area(), styles, now());
        draw::draw(frame, areas, &lines, state, styles, now());
    };
    terminal.draw(draw).expect("drawn");
    let text = terminal.backend().to_string();
    let line = |line: &str| line.split('"').nth(1).unwrap_or_default().trim_end().to_owned() + "\n";
    text.lines().map(line).collect()
}

fn full(mut state: State) -> State {
    let Gathered { snapshot, .. } = gathered();
    press(&mut state, "\n");
    state.gathered(Gathered { snapshot, detail: Some(detail()), usage: None });
    state
}

#[test]
fn draws_the_bottles() {
    insta::assert_snapshot!("bottles_80x24", drawn(&mut state(), USUAL, Styles::PLAIN));
    insta::assert_snapshot!("bottles_160x40", drawn(&mut state(), (160, 40), Styles::PLAIN));
    insta::assert_snapshot!("bottles_40x10", drawn(&mut state(), (40, 10), Styles::PLAIN));
    insta::assert_snapshot!("bottles_ascii", drawn(&mut state(), USUAL, ASCII));
}

#[test]
fn draws_one_bottle() {
    insta::assert_snapshot!("bottle_80x24", drawn(&mut full(state()), USUAL, Styles::PLAIN));
    insta::assert_snapshot!("bottle_120x40", drawn(&mut full(state()), (120, 40), Styles::PLAIN));
    let mut reading = state();
    press(&mut reading, "\n");
    assert!(drawn(&mut reading, (80, 40), Styles::PLAIN).contains("reading usage and decisions"));
}

#[test]
fn draws_a_paused_bottle() {
    let mut state = state();
    press(&mut state, "jj");
    insta::assert_snapshot!("paused_in_the_list", drawn(&mut state, USUAL, Styles::PLAIN));
    press(&mut state, "\n");
    insta::assert_snapshot!("paused", drawn(&mut state, USUAL, Styles::PLAIN));
}

#[test]
fn draws_usage() {
    let mut state = state();
    press(&mut state, "2");
    assert!(drawn(&mut state, USUAL, Styles::PLAIN).contains("reading the ledger"));
    assert_eq!(state.wanted(), Wanted { detail: None, usage: Some((GroupBy::Day, Period::Week)) });
    state.gathered(Gathered { snapshot: snapshot(), detail: None, usage: Some(usage(GroupBy::Day, false)) });
    insta::assert_snapshot!("usage_80x24", drawn(&mut state, USUAL, Styles::PLAIN));
    press(&mut state, "p");
    assert!(state.usage().is_none(), "the table of days is not the one of providers");
    let priced = Snapshot { currency: Some("EUR".to_owned()), ..snapshot() };
    state.gathered(Gathered { snapshot: priced, detail: None, usage: Some(usage(GroupBy::Provider, true)) });
    insta::assert_snapshot!("usage_with_costs", drawn(&mut state, (120, 20), Styles::PLAIN));
    press(&mut state, "t");
    assert_eq!((state.period(), state.usage().is_none()), (Period::Month, true));
}

#[test]
fn draws_a_home_without_bottles() {
    let mut state = with(Vec::new());
    insta::assert_snapshot!("empty", drawn(&mut state, USUAL, Styles::PLAIN));
    for keys in ["\n", "s", "d", "b", "p", "j", "k", "G"] {
        assert_eq!(press(&mut state, keys), Effect::Nothing, "{keys:?}");
    }
}

#[test]
fn every_action_is_confirmed_once() {
    let mut state = state();
    assert_eq!(press(&mut state, "s"), Effect::Nothing);
    insta::assert_snapshot!("confirm", drawn(&mut state, USUAL, Styles::PLAIN));
    let slug = state.current().expect("a bottle").slug.clone();
    // Every key except `y` cancels the question.
    for other in ['n', '\n', '\x1b', 's', 'Y', ' '] {
        press(&mut state, "s");
        assert_eq!(press(&mut state, &other.to_string()), Effect::Nothing, "{other:?}");
        assert!(state.overlay().is_none() && !state.is_busy(), "{other:?}");
    }
    press(&mut state, "s");
    assert_eq!(press(&mut state, "y"), Effect::CarryOut(Box::new(Action::Stop { slug })));
    assert!(drawn(&mut state, USUAL, Styles::PLAIN).contains("stopping api-fix"));
    // While an action is in progress, no second action starts.
    press(&mut state, "s");
    assert!(state.overlay().is_none());
    assert_eq!(press(&mut state, "q"), Effect::Nothing, "asks before it leaves an action alone");
    assert_eq!(press(&mut state, "q"), Effect::Leave);
    state.carried_out(Err("the keeper is gone".to_owned()), now());
    assert!(drawn(&mut state, USUAL, Styles::PLAIN).contains("the keeper is gone"));
    assert!(!state.is_busy());
}

#[test]
fn a_budget_is_raised_by_a_typed_number() {
    let mut state = state();
    press(&mut state, "b500000");
    insta::assert_snapshot!("amount", drawn(&mut state, USUAL, Styles::PLAIN));
    press(&mut state, "\n");
    assert!(matches!(state.overlay(), Some(Overlay::Confirm(Action::Raise { tokens: 500_000, .. }))));
    let Effect::CarryOut(action) = press(&mut state, "y") else { panic!("it is carried out") };
    let Action::Raise { declared, tokens, limit, .. } = *action else { panic!("{action:?}") };
    assert_eq!((declared.scope.to_string().as_str(), tokens, limit), ("bottle:dev", 500_000, 2_000_000));
    state.carried_out(Ok("done".to_owned()), now());
    // Tab selects the next budget.
    press(&mut state, "b\t1\n");
    let Some(Overlay::Confirm(Action::Raise { declared, .. })) = state.overlay() else { panic!("asks") };
    assert_eq!(declared.scope.to_string(), "ceiling");
    press(&mut state, "n");
    for bad in ["0", "-5", "5M", "", "9007199254740993"] {
        press(&mut state, "b");
        press(&mut state, bad);
        press(&mut state, "\n");
        assert!(matches!(state.overlay(), Some(Overlay::Amount { .. })), "{bad}");
        press(&mut state, "\x1b");
    }
    state.paste("y");
    assert!(state.overlay().is_none(), "pasted text is no key");
}

#[test]
fn keys_act_only_on_bottles_that_they_suit() {
    for (bottle_state, status, stops, discards) in [
        (BottleState::Running, "running", true, false),
        (BottleState::Changing, "starting", false, false),
        (BottleState::Kept, "kept", false, true),
        (BottleState::Snapshot, "kept", false, false),
        (BottleState::Ended, "ended", false, false),
        (BottleState::Broken, "orphaned", false, false),
    ] {
        let mut state = with(vec![bottle("one", bottle_state, status)]);
        press(&mut state, "e");
        press(&mut state, "s");
        assert_eq!(state.overlay().is_some(), stops, "{status}");
        press(&mut state, "n");
        press(&mut state, "d");
        assert_eq!(state.overlay().is_some(), discards, "{status}");
        press(&mut state, "n");
        press(&mut state, "b");
        assert!(state.overlay().is_none(), "it has no budget");
    }
}

/// The names of the bottles in the list.
fn names(state: &State) -> String {
    let names = state.bottles().into_iter().map(|bottle| bottle.slug.as_str());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn ended_bottles_are_folded() {
    let mut state = state();
    assert!(!names(&state).contains("done"), "{}", names(&state));
    let screen = drawn(&mut state, USUAL, Styles::PLAIN);
    assert!(screen.contains("1 ended: `e` shows them") && !screen.contains("done"), "{screen}");
    press(&mut state, "eG");
    assert_eq!(state.current().expect("a bottle").slug.as_str(), "done");
    assert!(drawn(&mut state, USUAL, Styles::PLAIN).contains("> done"));
    press(&mut state, "e");
    assert_eq!(state.current().expect("a bottle").slug.as_str(), "api-fix", "the cursor leaves it");
    // A bottle that ends under the cursor stays there until the cursor moves.
    let mut new = snapshot();
    new.bottles[0] = bottle("api-fix", BottleState::Ended, "ended");
    state.gathered(Gathered { snapshot: new, detail: None, usage: None });
    assert_eq!(state.current().expect("a bottle").slug.as_str(), "api-fix");
    press(&mut state, "j");
    assert!(!names(&state).contains("api-fix"), "{}", names(&state));
    // If all bottles have ended, the list is empty, and no key acts on a bottle.
    let mut all = with(vec![bottle("one", BottleState::Ended, "ended")]);
    assert_eq!(
        (names(&all).as_str(), press(&mut all, "\n"), all.view()),
        ("", Effect::Nothing, View::Bottles)
    );
    assert!(drawn(&mut all, USUAL, Styles::PLAIN).contains("1 ended"));
}

#[test]
fn a_filter_shows_only_some_bottles() {
    let mut state = state();
    press(&mut state, "/PARS");
    assert_eq!(names(&state), "refactor-parser");
    insta::assert_snapshot!("filter", drawn(&mut state, USUAL, Styles::PLAIN));
    press(&mut state, "\n");
    assert!(state.overlay().is_none() && names(&state) == "refactor-parser");
    press(&mut state, "/zz");
    assert_eq!((names(&state).as_str(), press(&mut state, "\n")), ("", Effect::Nothing));
    assert_eq!(press(&mut state, "s\n"), Effect::Nothing);
    assert_eq!(state.view(), View::Bottles, "there is no bottle to show");
    press(&mut state, "\x1b");
    assert_eq!(state.bottles().len(), snapshot().bottles.len() - 1);
    press(&mut state, "/");
    state.paste("ended");
    assert_eq!(names(&state), "done", "a filter shows ended bottles too");
    press(&mut state, "\x1b");
    assert!(state.overlay().is_none() && !names(&state).contains("done"));
}

#[test]
fn the_cursor_stays_on_its_bottle() {
    let mut state = state();
    press(&mut state, "jj");
    assert_eq!(state.current().expect("a bottle").slug.as_str(), "refactor-parser");
    let mut new = snapshot();
    new.bottles.insert(0, bottle("aaa", BottleState::Running, "running"));
    state.gathered(Gathered { snapshot: new.clone(), detail: None, usage: None });
    assert_eq!((state.at(), state.current().expect("a bottle").slug.as_str()), (3, "refactor-parser"));
    press(&mut state, "\n");
    new.bottles.remove(3);
    state.gathered(Gathered { snapshot: new, detail: None, usage: None });
    assert_eq!((state.view(), state.at()), (View::Bottles, 3));
    assert!(drawn(&mut state, USUAL, Styles::PLAIN).contains("refactor-parser is gone"));
}

#[test]
fn keys_change_the_view() {
    let mut state = state();
    for (keys, view) in [
        ("\t", View::Usage),
        ("\t", View::Proposals),
        ("\t", View::Bottles),
        ("\n", View::Bottle),
        ("\x1b", View::Bottles),
        ("2", View::Usage),
        ("\x1b", View::Bottles),
        ("3", View::Proposals),
        ("\x1b", View::Bottles),
        ("\nn1", View::Bottles),
    ] {
        press(&mut state, keys);
        assert_eq!(state.view(), view, "{keys:?}");
    }
    let slug = state.current().expect("a bottle").slug.clone();
    assert_eq!(press(&mut state, "p"), Effect::Select(slug));
    assert_eq!(state.view(), View::Proposals);
    press(&mut state, "1?");
    insta::assert_snapshot!("help", drawn(&mut state, USUAL, Styles::PLAIN));
    press(&mut state, "q");
    assert!(state.overlay().is_none(), "any key goes back");
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(interrupt), Effect::Leave);
}

#[test]
fn problems_are_shown_until_they_are_gone() {
    let mut state = state();
    let problems = vec!["cannot open the ledger".to_owned(), "other".to_owned()];
    let bad = Snapshot { problems, ..snapshot() };
    state.gathered(Gathered { snapshot: bad, detail: None, usage: None });
    assert!(drawn(&mut state, USUAL, Styles::PLAIN).contains("cannot open the ledger (and 1 more)"));
    state.gathered(gathered());
    assert!(!drawn(&mut state, USUAL, Styles::PLAIN).contains("cannot open"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever text a bottle writes, the screen shows no control characters, and no line is too long.
    #[test]
    fn hostile_text_stays_text(
        text in "[a-zé日\u{1b}\u{9b}\u{202e}\n\t\u{7}]{0,40}",
        columns in 40u16..200, rows in 10u16..50, ascii: bool,
        keys in "[123jk\n\tsbdpnt?q/e\u{1b}]{0,6}",
    ) {
        let styles = if ascii { ASCII } else { Styles::PLAIN };
        let mut gathered = gathered();
        for bottle in &mut gathered.snapshot.bottles {
            bottle.label = Some(text.clone());
            bottle.agent.clone_from(&text);
            bottle.problem = Some(text.clone());
        }
        gathered.snapshot.problems = vec![text.clone()];
        let mut detail = detail();
        for source in &mut detail.sources {
            source.model.clone_from(&text);
            source.source.clone_from(&text);
        }
        let mut table = usage(GroupBy::Day, true);
        for row in &mut table.rows {
            row.name.clone_from(&text);
        }
        gathered.detail = Some(detail);
        gathered.usage = Some(table);
        let mut state = State::new(gathered);
        press(&mut state, &keys);
        let screen = drawn(&mut state, (columns, rows), styles);
        let is_bad = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
        prop_assert!(!screen.contains(is_bad), "{screen:?}");
        prop_assert!(!ascii || screen.is_ascii(), "{screen:?}");
        for line in screen.lines() {
            prop_assert!(measure_text_width(line) <= usize::from(columns), "{line:?}");
        }
    }
}
