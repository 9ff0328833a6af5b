//! Where a listing goes on, as clients carry it.

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

/// The refusal of a cursor, whatever is wrong with it.
pub fn unknown() -> Problem {
    Problem::invalid("the cursor is none that this listing gave; begin without one").with("field", "cursor")
}

/// What every name begins with that is like a pattern.
pub fn prefix(pattern: &str) -> &str {
    pattern.split(['*', '?']).next().unwrap_or_default()
}

/// A name just before all that begin with this, so that a listing need not begin at the first; none to begin there.
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

#[cfg(test)]
mod tests {
    use super::*;

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
