//! The pages, as HTML. The template escapes every text. In text from bottles, control characters and direction marks
//! are made visible, so that they cannot change the meaning of a page.
//!
//! - `list`: all bottles · `bottle`: one bottle in full · `usage`: usage tables
//! - `proposals`: the proposals, and the forms that answer them · `forms`: the forms that act on a bottle or a budget
//! - `parts`: states, bars and charts

mod bottle;
mod forms;
mod list;
mod parts;
mod proposals;
#[cfg(test)]
mod tests;
mod usage;

use bottle_text::terminal::inert;
use maud::{DOCTYPE, Markup, html};

use super::access::Refusal;
use super::assets::{SCRIPT, STYLE};

pub(super) use self::bottle::bottle;
pub(super) use self::forms::{confirm, confirm_raise, raise};
pub(super) use self::list::{bottles, filter_form, filter_query};
use self::parts::visible;
pub(super) use self::proposals::{answer, edit, proposal, proposals};
pub(super) use self::usage::{usage, usage_choices};

/// A page, and the parts around its content.
pub(super) struct Page<'p> {
    pub(super) title: String,
    /// The tab that is marked as the current one.
    pub(super) tab: Tab,
    /// The part that does not change while the page is open.
    pub(super) fixed: Markup,
    /// The part that is updated while the page is open, and the address of its events, relative to the directory of all
    /// pages.
    pub(super) live: Option<(Markup, String)>,
    /// The result of the last action.
    pub(super) message: Option<&'p Message>,
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) words: String,
    /// The routes that could not be saved, for the user to add to a file by hand.
    pub(super) unsaved: Option<String>,
    pub(super) is_error: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Bottles,
    Usage,
    Proposals,
}

impl Page<'_> {
    /// Returns the whole document. `directory` is the directory of all pages. `proposals` is the number of pending
    /// proposals.
    pub(super) fn render(&self, directory: &str, proposals: u32) -> Markup {
        let tabs = [
            (Tab::Bottles, "", "Bottles".to_owned()),
            (Tab::Usage, "usage", "Usage".to_owned()),
            (Tab::Proposals, "proposals", "Proposals".to_owned()),
        ];
        html! {
            (DOCTYPE)
            html lang="en" {
                (head(&self.title, true))
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        span.brand { "bottle" }
                        nav aria-label="Views" {
                            ul {
                                @for (tab, path, name) in &tabs {
                                    li {
                                        a href={ (directory) (path) } aria-current=[(*tab == self.tab).then_some("page")] {
                                            (name)
                                            @if *tab == Tab::Proposals {
                                                " " span #count .count hidden[proposals == 0] { (proposals) }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                    main #main tabindex="-1" {
                        @if let Some(Message { words, unsaved, is_error }) = self.message {
                            p .message .bad[*is_error || unsaved.is_some()] role="status" { (visible(words)) }
                            @if let Some(routes) = unsaved {
                                p { "Add these lines to the file by hand:" }
                                pre tabindex="0" aria-label="Lines to add" { (inert(routes)) }
                            }
                        }
                        (self.fixed)
                        @if let Some((live, events)) = &self.live {
                            div #live data-events={ (directory) (events) } { (live) }
                        }
                    }
                    footer {
                        p #notice .quiet role="status" aria-live="polite" {}
                        @if self.live.is_some() {
                            p #connection .quiet { "This page shows the moment when it was loaded." }
                        }
                    }
                }
            }
        }
    }
}

fn head(title: &str, script: bool) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (visible(title)) " - bottle" }
            link rel="stylesheet" href=(STYLE);
            @if script { script src=(SCRIPT) defer {} }
        }
    }
}

/// Returns the page that forwards from the one-time link to the dashboard. The browser then navigates from a page of
/// this server, so it sends the cookie no matter where the link was opened.
pub(super) fn opened(directory: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0; url=" (directory) };
                title { "Opening the dashboard" }
                link rel="stylesheet" href=(STYLE);
            }
            body { main { h1 { "Opening the dashboard" } p { a href=(directory) { "Continue" } } } }
        }
    }
}

/// Returns the page that says why a request was refused.
pub(super) fn refused(refusal: Refusal) -> Markup {
    let (title, why, next) = match refusal {
        Refusal::WrongHost => (
            "Wrong address",
            "This server answers only to the address that `bottle dashboard --web` printed.",
            "Open the printed link.",
        ),
        Refusal::UsedLink => (
            "This link was used before",
            "The link of a dashboard opens it once, in one browser. If you did not open it, another program did: end the dashboard with Ctrl-C in its terminal.",
            "Run bottle dashboard --web again for a new link.",
        ),
        Refusal::Prefetch => (
            "Not yet",
            "The link of a dashboard opens it once, so it is not loaded ahead.",
            "Open the printed link.",
        ),
        Refusal::NoCookie => (
            "This browser has not opened the dashboard",
            "Only the browser in which the printed link was opened can use it.",
            "Open the link that bottle dashboard --web printed, or run the command again for a new one.",
        ),
        Refusal::OtherSite => (
            "The request came from another site",
            "The dashboard answers only to its own pages, so nothing was done.",
            "Open the dashboard in a tab of its own.",
        ),
        Refusal::BadToken => (
            "The form is not of this dashboard",
            "Its token is missing or wrong, so nothing was done.",
            "Go back, reload the page, and try again.",
        ),
        Refusal::BadMethod => (
            "Unknown method",
            "The dashboard answers to GET, HEAD and POST.",
            "Open the dashboard in a browser.",
        ),
    };
    notice_page(title, why, next, None)
}

/// Returns a page without views, for errors. With `back`, the page links to the dashboard.
pub(super) fn notice_page(title: &str, why: &str, next: &str, back: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, false))
            body {
                main.alone {
                    h1 { (visible(title)) }
                    p { (visible(why)) }
                    p { strong { (visible(next)) } }
                    @if let Some(back) = back { p { a href=(back) { "All bottles" } } }
                }
            }
        }
    }
}
