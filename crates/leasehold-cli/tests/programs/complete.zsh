# Types $2 and the completion key into a zsh with the functions in $1, and prints the line that it makes of it.
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT= ; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; bindkey '^I' complete-word"
zpty -w shell "reveal() { print -r -- \"<<\$BUFFER>>\"; BUFFER= }; zle -N reveal; bindkey '^X' reveal; print READY"
while zpty -r shell line; do [[ $line == *READY* && $line != *print* ]] && break; done
zpty -w -n shell "$2"$'\t'$'\x18'
while zpty -r shell line; do
  [[ $line == *'<<'*'>>'* ]] && { print -r -- "${${line##*<<}%%>>*}"; break }
done
zpty -d shell
