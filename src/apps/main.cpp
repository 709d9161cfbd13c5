#include "apps/commands.h"

int main(int argc, char** argv) { return nibble::apps::run_program(argc, argv); }
