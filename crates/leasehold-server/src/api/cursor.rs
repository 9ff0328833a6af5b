//! Where a listing continues, as clients carry it.

use crate::access::Scope;
use crate::serve::{Problem, Site};
use leasehold_core::{LeaseName, MAX_NAME_BYTES};

/// A cursor just after this name of this listing: what is listed, and where.
pub async fn after(site: &Site, listing: &[&str], name: Option<&LeaseName>) -> Result<Option<String>, Problem> {
    let Some(name) = name else { return Ok(None) };
    Ok(Some(site.seal().await?.cursor(listing, name)?))
}

/// The name that a cursor of this listing is just after.
pub async fn read(site: &Site, listing: &[&str], cursor: Option<&str>) -> Result<Option<LeaseName>, Problem> {
    let Some(cursor) = cursor else { return Ok(None) };
    let name = site.seal().await?.after(listing, cursor);
    name.map(Some).ok_or_else(unknown)
}

/// The refusal of an invalid cursor.
pub fn unknown() -> Problem {
    Problem::invalid("this cursor is not from this listing; start again without a cursor").with("field", "cursor")
}

/// The prefix that all names matching a pattern have in common.
pub fn prefix(pattern: &str) -> &str {
    pattern.split(['*', '?']).next().unwrap_or_default()
}

/// A name just before all that have this prefix, so that a listing need not begin at the first name; none to begin there.
pub fn before(prefix: &str) -> Option<LeaseName> {
    const ORDER: &str = "-./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";
    let last = prefix.chars().next_back()?;
    let start = &prefix[..prefix.len() - last.len_utf8()];
    let name = match ORDER.find(last)?.checked_sub(1) {
        Some(at) => {
            let room = MAX_NAME_BYTES.checked_sub(prefix.len())?;
            format!("{start}{}{}", &ORDER[at..=at], "z".repeat(room))
        }
        None => start.to_owned(),
    };
    LeaseName::new(name).ok()
}

/// The prefixes of the names that a caller may see and looks for. A listing skips all other names, so they cost nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginnings(Vec<String>);

impl Beginnings {
    /// The prefixes of the names that a key is for.
    pub fn of(scope: &Scope) -> Self {
        Beginnings(scope.names.iter().map(|pattern| prefix(&pattern.to_string()).to_owned()).collect())
    }

    /// No restriction.
    #[cfg(test)]
    pub fn everything() -> Self {
        Beginnings(vec![String::new()])
    }

    /// Of those among them that also begin with this.
    #[must_use]
    pub fn within(&self, prefix: &str) -> Self {
        let both = |own: &String| match (own.starts_with(prefix), prefix.starts_with(own.as_str())) {
            (true, _) => Some(own.clone()),
            (false, true) => Some(prefix.to_owned()),
            (false, false) => None,
        };
        Beginnings(self.0.iter().filter_map(both).collect())
    }

    /// Whether no name is among them.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where a listing begins: just before the first of them; none at the first name of all.
    pub fn first(&self) -> Option<LeaseName> {
        before(self.0.iter().min()?)
    }

    /// Where a listing continues after this name: there, or just before the next of them. None if there are no more.
    pub fn after(&self, name: &LeaseName) -> Option<LeaseName> {
        if self.0.iter().any(|beginning| name.as_str().starts_with(beginning.as_str())) {
            return Some(name.clone());
        }
        let next = self.0.iter().filter(|beginning| beginning.as_str() > name.as_str()).min()?;
        let before = before(next).filter(|before| before.as_str() > name.as_str());
        Some(before.unwrap_or_else(|| name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_skips_to_the_next_names_that_are_looked_for() {
        let beginnings = |texts: &[&str]| Beginnings(texts.iter().map(|&text| text.to_owned()).collect());
        let some = beginnings(&["team-b/", "team-z/"]);
        let name = |text: &str| LeaseName::new(text).unwrap();
        assert!(some.first().unwrap().as_str() < "team-b/" && some.first().unwrap().as_str() > "team-a/zzz");
        assert_eq!(some.after(&name("team-b/x")), Some(name("team-b/x")));
        let next = some.after(&name("team-c/x")).unwrap();
        assert!(next.as_str() < "team-z/" && next.as_str() > "team-y/zzz", "{next}");
        assert_eq!(some.after(&name("zebra")), None);
        assert_eq!(some.within("team-z/a"), beginnings(&["team-z/a"]));
        assert_eq!(some.within("team"), some);
        assert!(some.within("other").is_empty());
        assert_eq!(beginnings(&[""]).first(), None);
    }

    #[test]
    fn a_listing_of_a_prefix_begins_before_the_first_name_that_has_it() {
        let names = ["a", "a-b", "a.b", "a/b", "a/c", "a0", "b", "b/-", "b/.x", "B", "_", "zz", "-"];
        for prefix in ["a", "a/", "a/c", "b/", "b/-", "b/.", "-", "_", "zz", "A", "B", "0", "a-"] {
            let start = before(prefix);
            for name in names.iter().filter(|name| name.starts_with(prefix)) {
                assert!(start.as_ref().is_none_or(|start| start.as_str() < *name), "{prefix} {name} {start:?}");
            }
            if let Some(start) = &start {
                assert!(start.as_str() < prefix, "{prefix} {start}");
            }
        }
        assert_eq!(before(""), None);
        assert_eq!(before("é"), None);
        assert_eq!([prefix("a/*"), prefix("a"), prefix("?b"), prefix("")], ["a/", "a", "", ""]);
    }
}
