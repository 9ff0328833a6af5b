//! Placeholder.
fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "m" {
        for (m, name, p, _) in leasehold_sim::Mutant::ALL {
            if args.len() > 2 && args[2] != name {
                continue;
            }
            match leasehold_sim::check_mutant(m) {
                Ok(r) if r.broken(p).is_some() => {
                    println!("{name:<30} {:<40} {} {} {:?}", p.name(), r.config, r.unique_states, r.took);
                    if args.len() > 2 {
                        for f in &r.failures {
                            println!("{}\n{}\n{}", f.promise.name(), f.story, f.replay);
                        }
                    }
                }
                Ok(_) => println!("{name:<30} NOT CAUGHT"),
                Err(e) => println!("{e}"),
            }
        }
        return;
    }
    for config in leasehold_sim::ci().into_iter().chain(leasehold_sim::small()) {
        if !args.contains(&config.name.to_string()) {
            continue;
        }
        match leasehold_sim::check(&config, 2) {
            Ok(report) => {
                println!(
                    "{} {} states {} steps depth {} in {:?}",
                    report.config, report.unique_states, report.steps, report.depth, report.took
                );
                for f in &report.failures {
                    println!("{}\n{}\n{}", f.promise.name(), f.story, f.replay);
                }
                for (s, t) in &report.sightings {
                    println!("   {t:>9} {}", s.name());
                }
            }
            Err(e) => println!("{e}"),
        }
    }
}
